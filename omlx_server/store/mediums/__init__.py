"""Where the cold tier's bytes can lie: files, Redis, object stores."""

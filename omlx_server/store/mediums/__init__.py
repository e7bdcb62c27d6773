"""The mediums that keep the cold tier's bytes: files, Redis, object stores."""

"""The mediums that can keep the cold tier's bytes: files, Redis, object stores."""

"""The log: events, codec, chain, reader, writer, store, read models."""

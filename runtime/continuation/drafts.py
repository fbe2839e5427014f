"""The events of the protocol: a claim, its run, its start, and the end of one that nobody will finish. No I/O."""

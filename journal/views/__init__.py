"""One read model a module: a fold of events, and the rows that it shows."""

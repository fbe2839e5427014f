"""From neutral messages to what providers take, and to what people read. Nothing here reads or writes a file."""

"""The command `maka`: a thin skin over the library. Arguments in, documents and text out."""

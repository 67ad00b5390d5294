"""Makes a new operator out of an existing one: a folder that works as written, with the places to change marked."""

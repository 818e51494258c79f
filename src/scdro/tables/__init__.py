"""Tables, from a file to a model one would keep: who is failed, whether robust training helps, and at what price."""

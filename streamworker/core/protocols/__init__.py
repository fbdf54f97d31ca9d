"""The rebalance protocols, each in a folder of its own; ``registry`` is the only module that names all."""

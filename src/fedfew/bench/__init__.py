"""How fast, how large, how right: the engines measured on the machine at hand. ``fedfew bench`` shows it."""

"""A federation of sites on Flower, trained by fedfew."""

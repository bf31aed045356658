"""The demo job and the trained pair it shows; constructed pairs, whose text and acceptance are known in advance."""

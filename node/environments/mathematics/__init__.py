"""Is a mathematical answer the right one? How texts are spelt and read, and when two of them are equal."""

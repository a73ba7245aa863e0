"""Data sets that this project makes: the emoji benchmark, and shapes that it draws."""

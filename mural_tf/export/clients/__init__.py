"""Small clients that an export carries along; they import nothing of this library."""

"""The emoji benchmark: real pictures, names in a hundred languages and translation pairs, from npm packages."""

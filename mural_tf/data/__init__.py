"""Data: the record format, the data sets, and the one pipeline that turns records into batches."""

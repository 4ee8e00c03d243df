"""nf_tables: how messages and transactions are made, and the tables of masquerading and of checked sources."""

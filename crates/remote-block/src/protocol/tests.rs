//! Both sides of every limit, and input that nobody expects.

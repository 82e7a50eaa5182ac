//! Which block is where, who needs it, and what is to be moved next.

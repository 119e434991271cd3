//! The rules, one by one, are checked here.

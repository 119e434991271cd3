//! A dispatcher under load, and what it promises about order and sequences.

mod driving;
mod ordering;
mod sequences;

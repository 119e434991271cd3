//! Tests of a loaded version, with backends controlled by the test.

mod gpu_loss;
mod measurements;
mod requests;
mod trace;
mod traffic;
mod watching;

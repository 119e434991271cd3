//! Tests of a loaded version, with backends under the test's control.

mod gpu_loss;
mod measurements;
mod requests;
mod trace;
mod traffic;
mod watching;

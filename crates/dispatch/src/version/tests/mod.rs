//! A loaded version over backends under the test's control.

mod requests;
mod trace;

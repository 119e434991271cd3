//! Gives the library the name by which programs and backends ask for it.

fn main() {
    println!("cargo::rustc-cdylib-link-arg=-Wl,-soname,libtritonserver.so");
}

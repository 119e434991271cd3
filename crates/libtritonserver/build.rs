//! Gives the library the name under which programs and backends look for it.

fn main() {
    println!("cargo::rustc-cdylib-link-arg=-Wl,-soname,libtritonserver.so");
}

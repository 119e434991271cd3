//! Sets the library's soname to the name that programs and backends look for.

fn main() {
    println!("cargo::rustc-cdylib-link-arg=-Wl,-soname,libtritonserver.so");
}

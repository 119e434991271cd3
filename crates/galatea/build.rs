//! Exports the program's functions, so that backends in libraries find them.

fn main() {
    println!("cargo::rustc-link-arg-bins=-rdynamic");
}

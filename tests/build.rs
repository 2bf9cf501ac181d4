//! Tells the RPC layer's tests, some of which are included here, that verbs carry their packets.

fn main() {
    println!("cargo::rustc-cfg=carried");
    println!("cargo::rerun-if-changed=build.rs");
}

//! Tells the tests of the RPC layer, which some of the tests here include, that their packets are carried.

fn main() {
    println!("cargo::rustc-cfg=carried");
    println!("cargo::rerun-if-changed=build.rs");
}

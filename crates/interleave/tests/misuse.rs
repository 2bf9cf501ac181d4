//! Misuse does not compile, and the compiler says where and why.

#[test]
#[cfg(not(miri))]
fn misuse_is_told_at_its_line() {
    trybuild::TestCases::new().compile_fail("tests/ui/*.rs");
}

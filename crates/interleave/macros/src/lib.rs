//! The attribute macro of `sinew-interleave`, in the spirit of G-Opt (nsdi15 3.2): see [`macro@interleave`].
//!
//! `options` reads what the attribute says, `signature` tells what each lookup has of its own from what all share, `marks` finds the loads that
//! are marked and rewrites them, and `expand` writes the functions.

#![forbid(unsafe_code)]

mod expand;
mod marks;
mod options;
mod signature;

use proc_macro::TokenStream;

/// Makes a batch function of a plain one, whose expensive loads are marked.
///
/// The function stays what it is, without the marks. Beside it there is a *batch function*, which makes many lookups whose loads overlap, and gives
/// their results in the order of the inputs, as `Batch::run` does. A parameter that each lookup has of its own is preceded by `#[each]`; the batch
/// function has an iterator in place of these (over tuples, when there are several). The other parameters, and `&self`, are shared by all
/// lookups, so their types must be `Copy`. After them come the inputs and the slice for the results.
///
/// Marks are statements:
///
/// - `fetch!(&value);`: what follows reads `value`, which is probably in no cache. The batch function asks the cache for it and goes on with another
///   lookup; the plain function ignores the mark.
/// - `switch!(expression);`: the same, where the expression itself asks the cache, as tables do that hand out no references.
///
/// Any control flow may be around them: branches, loops, early returns, `?`.
///
/// # Options
///
/// - `batch = name`: the batch function. It is needed.
/// - `lookup = name`: also the lookup as an `async` function, to be run by a `Batch` of one's own, or awaited by another lookup.
/// - `width = number`: how many lookups run at once. Without it the batch function takes a `Batch<MAX>`, as its first argument after `&self`, whose width
///   is chosen at run time.
///
/// # Errors
///
/// Misuse does not compile, and the compiler points at it: a mark in a closure, in an `async` block, in an inner function or in another macro, where nothing can switch;
/// a function without marks or without `#[each]`; `self`, `&mut` or a pattern where lookups share a parameter. The function is free, or a method with `&self`.
#[proc_macro_attribute]
pub fn interleave(options: TokenStream, function: TokenStream) -> TokenStream {
    expand::expand(options.into(), function.into()).unwrap_or_else(|error| error.to_compile_error()).into()
}

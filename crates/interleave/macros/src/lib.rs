//! The attribute macro of `sinew-interleave`, in the spirit of G-Opt (nsdi15 3.2): see [`macro@interleave`].
//!
//! `options` reads what the attribute says, `signature` tells the parameters that each lookup has of its own from those
//! that all share, `marks` finds and rewrites the marked loads, and `expand` writes the functions.

#![forbid(unsafe_code)]

mod expand;
mod marks;
mod options;
mod signature;

use proc_macro::TokenStream;

/// Makes a batch function from a plain function whose expensive loads are marked.
///
/// The function itself stays as it is, without the marks. Beside it there is a *batch function*, which runs many
/// lookups whose loads overlap, and gives their results in the order of the inputs, as `Batch::run` does. A parameter
/// that each lookup has of its own is preceded by `#[each]`; the batch function takes one iterator in place of these
/// parameters, over tuples if there are several. The other parameters, and `&self`, are shared by all lookups, so their
/// types must be `Copy`. After them come the inputs and the slice for the results.
///
/// Marks are statements:
///
/// - `fetch!(&value);`: the code that follows reads `value`, which is probably in no cache. The batch function asks the
///   cache for it and goes on with another lookup; the plain function ignores the mark.
/// - `switch!(expression);`: the same, for an expression that asks the cache itself, as with tables that hand out no
///   references.
///
/// Any control flow may surround them: branches, loops, early returns, `?`.
///
/// # Options
///
/// - `batch = name`: name of the batch function. It is required.
/// - `lookup = name`: name of an `async` function for one lookup, which is written as well. Run it by a `Batch` of your
///   own, or await it in another lookup.
/// - `width = number`: how many lookups run at once, 1 to 256. Without it, the first argument of the batch function
///   after `&self` is a `Batch<MAX>`, whose width is chosen at run time.
///
/// # Errors
///
/// Misuse does not compile, and the compiler points at it: a mark in a closure, in an `async` block, in an inner
/// function or in another macro, where nothing can switch; a function without marks or without `#[each]`; `self`,
/// `&mut` or a pattern for a parameter that lookups share. The function must be free, or a method with `&self`.
#[proc_macro_attribute]
pub fn interleave(options: TokenStream, function: TokenStream) -> TokenStream {
    expand::expand(options.into(), function.into()).unwrap_or_else(|error| error.to_compile_error()).into()
}

//! Options in the attribute's parentheses.

use proc_macro2::Span;
use syn::parse::{Parse, ParseStream};
use syn::{Error, Ident, LitInt, Token};

/// Most lookups that can run at once; equal to `sinew_interleave::WIDTH_MAX`.
const WIDTH_MAX: usize = 256;

/// Options of [`macro@crate::interleave`].
pub struct Options {
    pub batch: Ident,
    pub lookup: Option<Ident>,
    pub width: Option<usize>,
}

impl Parse for Options {
    fn parse(input: ParseStream<'_>) -> syn::Result<Self> {
        let (mut batch, mut lookup, mut width) = (None, None, None);
        while !input.is_empty() {
            let option: Ident = input.parse()?;
            let is_twice = match option.to_string().as_str() {
                "batch" => batch.is_some(),
                "lookup" => lookup.is_some(),
                "width" => width.is_some(),
                _ => {
                    return Err(Error::new(
                        option.span(),
                        "there is no such option: the options are batch, lookup and width",
                    ));
                }
            };
            if is_twice {
                return Err(Error::new(option.span(), "this option was given already"));
            }
            input.parse::<Token![=]>()?;
            match option.to_string().as_str() {
                "batch" => batch = Some(input.parse()?),
                "lookup" => lookup = Some(input.parse()?),
                _ => width = Some(width_of(&input.parse()?)?),
            }
            if !input.is_empty() {
                input.parse::<Token![,]>()?;
            }
        }
        let batch = batch
            .ok_or_else(|| Error::new(Span::call_site(), "name the batch function: #[interleave(batch = name)]"))?;
        Ok(Self { batch, lookup, width })
    }
}

fn width_of(literal: &LitInt) -> syn::Result<usize> {
    match literal.base10_parse() {
        Ok(width @ 1..=WIDTH_MAX) => Ok(width),
        _ => Err(Error::new(literal.span(), format!("a batch runs 1 to {WIDTH_MAX} lookups at once"))),
    }
}

//! Expansion of an annotated function into the functions that the macro makes of it.

use proc_macro2::TokenStream;
use quote::{format_ident, quote};
use syn::{Block, GenericParam, ImplItemFn, Signature, parse_quote};

use crate::marks;
use crate::options::Options;
use crate::signature::{self, Parameters};

/// Writes the plain function, the lookup and the batch function.
pub fn expand(options: TokenStream, function: TokenStream) -> syn::Result<TokenStream> {
    let options: Options = syn::parse2(options)?;
    // To the parser, a free function is a method without a receiver.
    let function: ImplItemFn = syn::parse2(function)?;
    let parameters = signature::parameters(&function.sig)?;
    let (plain_body, lookup_body) = marks::bodies(&function.block)?;
    let ImplItemFn { attrs, vis, sig, .. } = &function;
    let sig = signature::without_each(sig);
    let name = &sig.ident;
    let lookup_doc =
        format!("[`{name}`](Self::{name}) as a lookup that lets others run at each mark. Run it by a `Batch`.");
    let lookup_doc = if parameters.receiver.is_some() { lookup_doc } else { lookup_doc.replace("Self::", "") };
    let lookup = options.lookup.as_ref().map(|lookup_name| {
        let lookup_sig = Signature { asyncness: Some(Default::default()), ident: lookup_name.clone(), ..sig.clone() };
        let lookup_attrs = attrs.iter().filter(|attribute| !attribute.path().is_ident("doc"));
        quote! {
            #[doc = #lookup_doc]
            #(#lookup_attrs)*
            #vis #lookup_sig #lookup_body
        }
    });
    let batch = batch(&options, &function, &sig, &parameters, &lookup_body);
    Ok(quote! {
        #(#attrs)*
        #vis #sig #plain_body

        #lookup

        #batch
    })
}

fn batch(
    options: &Options,
    function: &ImplItemFn,
    sig: &Signature,
    parameters: &Parameters,
    lookup_body: &Block,
) -> TokenStream {
    let Parameters { receiver, shared, each, each_patterns, result, lifetimes, bounds } = parameters;
    let (vis, name) = (&function.vis, &sig.ident);
    let batch_name = &options.batch;
    let mut generics = sig.generics.clone();
    for (at, lifetime) in lifetimes.iter().enumerate() {
        generics.params.insert(at, GenericParam::Lifetime(parse_quote!(#lifetime)));
    }
    generics.make_where_clause().predicates.extend(bounds.iter().cloned());
    // Names that do not clash with those of parameters.
    let (width, inputs, results) = (format_ident!("__width"), format_ident!("__inputs"), format_ident!("__results"));
    let (width_parameter, batch) = match options.width {
        Some(width) => (None, quote!(::sinew_interleave::Batch::<#width>::new())),
        None => {
            generics.params.push(parse_quote!(const __MAX: usize));
            (Some(quote!(#width: ::sinew_interleave::Batch<__MAX>,)), quote!(#width))
        }
    };
    let (parameter_names, types): (Vec<_>, Vec<_>) = shared.iter().map(|(name, of)| (name, of)).unzip();
    let each_names: Vec<_> = (0..each.len()).map(|at| format_ident!("__each{at}")).collect();
    let (item, pattern) = match (&each[..], &each_names[..]) {
        ([item], [name]) => (quote!(#item), quote!(#name)),
        _ => (quote!((#(#each),*)), quote!((#(#each_names),*))),
    };
    let receiver = receiver.as_ref().map(|receiver| quote!(#receiver,));
    let (impl_generics, _, where_clause) = generics.split_for_impl();
    let link = if receiver.is_some() { format!("[`{name}`](Self::{name})") } else { format!("[`{name}`]") };
    let doc = format!(
        "{link} for each of the inputs, with overlapping cache misses. Results come in the order of the inputs. Returns \
         the number of lookups: that of the inputs, or of the results if these are fewer."
    );
    quote! {
        #[doc = #doc]
        #[allow(clippy::too_many_arguments, clippy::type_complexity)]
        #vis fn #batch_name #impl_generics (
            #receiver
            #width_parameter
            #(#parameter_names: #types,)*
            #inputs: impl ::core::iter::IntoIterator<Item = #item>,
            #results: &mut [#result],
        ) -> usize #where_clause {
            // The lookup's body is inside the batch function, not in a function with other callers, so that the
            // compiler inlines it into the engine's loop.
            #batch.run(#inputs, #results, move |#pattern| {
                ::sinew_interleave::finding::<#result, _>(async move {
                    #(let #each_patterns = #each_names;)*
                    #lookup_body
                })
            })
        }
    }
}

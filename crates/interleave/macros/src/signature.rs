//! Parameters of a marked function: those that each lookup has of its own, and those that all share.

use proc_macro2::Span;
use syn::spanned::Spanned;
use syn::visit_mut::{self, VisitMut};
use syn::{
    Error, FnArg, Ident, Lifetime, Pat, PatType, Receiver, ReturnType, Signature, Type, WherePredicate, parse_quote,
};

/// The parameters of a marked function.
pub struct Parameters {
    /// Receiver, with a named lifetime.
    pub receiver: Option<Receiver>,
    /// Names and types of the parameters that all lookups share.
    pub shared: Vec<(Ident, Type)>,
    /// Types of the parameters that each lookup has of its own.
    pub each: Vec<Type>,
    /// Patterns of those parameters.
    pub each_patterns: Vec<Pat>,
    pub result: Type,
    /// Names made for elided lifetimes.
    pub lifetimes: Vec<Lifetime>,
    /// Bounds which say that what a reference leads to outlives it: the compiler infers them for parameters, but not
    /// for the items of an iterator.
    pub bounds: Vec<WherePredicate>,
}

/// Returns the signature without `#[each]` before its parameters.
pub fn without_each(signature: &Signature) -> Signature {
    let mut signature = signature.clone();
    for input in &mut signature.inputs {
        if let FnArg::Typed(parameter) = input {
            parameter.attrs.retain(|attribute| !attribute.path().is_ident("each"));
        }
    }
    signature
}

/// Reads the parameters, and refuses those that a batch cannot have.
pub fn parameters(signature: &Signature) -> syn::Result<Parameters> {
    let refuse = |span: Span, what: &str| Err(Error::new(span, what));
    if let Some(token) = &signature.asyncness {
        return refuse(token.span(), "write a plain function: the batch function switches at its marks");
    }
    if let Some(token) = &signature.constness {
        return refuse(token.span(), "a const function cannot be interleaved");
    }
    if let Some(token) = &signature.unsafety {
        return refuse(token.span(), "an unsafe function cannot be interleaved: use an unsafe block inside it");
    }
    let mut read = Parameters {
        receiver: None,
        shared: Vec::new(),
        each: Vec::new(),
        each_patterns: Vec::new(),
        result: parse_quote!(()),
        lifetimes: Vec::new(),
        bounds: Vec::new(),
    };
    let mut names = Names::default();
    for input in &signature.inputs {
        match input {
            FnArg::Receiver(receiver) => read.receiver = Some(named_receiver(receiver, &mut names)?),
            FnArg::Typed(parameter) => typed(parameter, &mut read, &mut names)?,
        }
    }
    if read.each.is_empty() {
        let what = "nothing differs from lookup to lookup: put #[each] before the parameter that does";
        return refuse(signature.ident.span(), what);
    }
    if let ReturnType::Type(_, result) = &signature.output {
        let mut result = (**result).clone();
        // By the rules of elision: the lifetime of `&self`, or the only one that there is.
        names.of_result = match (&read.receiver, &names.made[..]) {
            (Some(receiver), _) => receiver.reference.as_ref().and_then(|(_, lifetime)| lifetime.clone()),
            (None, [only]) => Some(only.clone()),
            (None, _) => signature.generics.lifetimes().next().map(|parameter| parameter.lifetime.clone()),
        };
        names.is_result = true;
        names.visit_type_mut(&mut result);
        read.result = result;
    }
    (read.lifetimes, read.bounds) = (names.made, names.bounds);
    Ok(read)
}

fn named_receiver(receiver: &Receiver, names: &mut Names) -> syn::Result<Receiver> {
    if receiver.reference.is_none() || receiver.mutability.is_some() {
        return Err(Error::new(receiver.span(), "all lookups share this: make it `&self`"));
    }
    let mut receiver = receiver.clone();
    if let Some((_, lifetime)) = &mut receiver.reference {
        let named = lifetime.take().filter(|lifetime| lifetime.ident != "_").unwrap_or_else(|| names.make());
        *lifetime = Some(named.clone());
        receiver.ty = parse_quote!(&#named Self);
    }
    Ok(receiver)
}

fn typed(parameter: &PatType, read: &mut Parameters, names: &mut Names) -> syn::Result<()> {
    let is_each = parameter.attrs.iter().any(|attribute| attribute.path().is_ident("each"));
    let mut of = (*parameter.ty).clone();
    names.visit_type_mut(&mut of);
    if is_each {
        read.each.push(of);
        read.each_patterns.push((*parameter.pat).clone());
        return Ok(());
    }
    if let Type::Reference(reference) = &*parameter.ty
        && reference.mutability.is_some()
    {
        return Err(Error::new(
            parameter.span(),
            "all lookups share this, so it cannot be `&mut`: make it `&`, or put #[each] before it",
        ));
    }
    match &*parameter.pat {
        Pat::Ident(name) if name.subpat.is_none() && name.by_ref.is_none() => {
            read.shared.push((name.ident.clone(), of));
            Ok(())
        }
        pattern => Err(Error::new(pattern.span(), "all lookups share this: give it a name, and destructure it inside")),
    }
}

/// Gives names to elided lifetimes, since an iterator's items need them.
#[derive(Default)]
struct Names {
    made: Vec<Lifetime>,
    bounds: Vec<WherePredicate>,
    is_result: bool,
    of_result: Option<Lifetime>,
}

impl Names {
    fn make(&mut self) -> Lifetime {
        let name = Lifetime::new(&format!("'interleaved{}", self.made.len()), Span::call_site());
        self.made.push(name.clone());
        name
    }

    fn name(&mut self) -> Option<Lifetime> {
        if self.is_result { self.of_result.clone() } else { Some(self.make()) }
    }
}

impl VisitMut for Names {
    fn visit_type_reference_mut(&mut self, reference: &mut syn::TypeReference) {
        if reference.lifetime.is_none() {
            reference.lifetime = self.name();
        }
        visit_mut::visit_type_reference_mut(self, reference);
        if let Some(lifetime) = &reference.lifetime {
            let to = &reference.elem;
            self.bounds.push(parse_quote!(#to: #lifetime));
        }
    }

    fn visit_lifetime_mut(&mut self, lifetime: &mut Lifetime) {
        if lifetime.ident == "_"
            && let Some(name) = self.name()
        {
            *lifetime = name;
        }
    }

    // Lifetimes elided in a function type or in `Fn(..)` belong to that type.
    fn visit_type_bare_fn_mut(&mut self, _: &mut syn::TypeBareFn) {}
    fn visit_parenthesized_generic_arguments_mut(&mut self, _: &mut syn::ParenthesizedGenericArguments) {}
}

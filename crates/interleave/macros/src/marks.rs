//! The marks in a function's body.

use proc_macro2::{TokenStream, TokenTree};
use quote::quote_spanned;
use syn::spanned::Spanned;
use syn::visit_mut::{self, VisitMut};
use syn::{Block, Error, Expr, Macro, Stmt, parse_quote_spanned};

/// Makes two bodies from one with marks: the plain one, and the lookup's, which switches.
pub fn bodies(body: &Block) -> syn::Result<(Block, Block)> {
    let (mut plain, mut switching) = (body.clone(), body.clone());
    let mut marks = Marks { is_plain: true, closed: None, found: 0, errors: Vec::new() };
    marks.visit_block_mut(&mut plain);
    if let Some(first) = marks.errors.into_iter().reduce(|mut all, next| {
        all.combine(next);
        all
    }) {
        return Err(first);
    }
    if marks.found == 0 {
        let what = "no load is marked here: put `fetch!(&value);` before a load that is expensive";
        return Err(Error::new(body.brace_token.span.open(), what));
    }
    Marks { is_plain: false, closed: None, found: 0, errors: Vec::new() }.visit_block_mut(&mut switching);
    Ok((plain, switching))
}

struct Marks {
    is_plain: bool,
    /// Construct around the current place in which nothing can switch, if there is one.
    closed: Option<&'static str>,
    found: usize,
    errors: Vec<Error>,
}

/// Name of the mark that a macro is, if it is one.
fn mark_of(mac: &Macro) -> Option<&'static str> {
    ["fetch", "switch"].into_iter().find(|mark| mac.path.is_ident(mark))
}

impl Marks {
    fn within(&mut self, what: &'static str, visit: impl FnOnce(&mut Self)) {
        let before = self.closed.replace(what);
        visit(self);
        self.closed = before;
    }

    /// Returns the expression that replaces a mark.
    fn rewritten(&mut self, mac: &Macro, mark: &'static str) -> Expr {
        let span = mac.path.span();
        self.found += 1;
        if let Some(what) = self.closed {
            let why = format!("a mark inside {what} cannot switch: move it before, into the function itself");
            self.errors.push(Error::new(span, why));
        }
        let asks: Expr = match mac.parse_body() {
            Ok(asks) => asks,
            Err(_) if mac.tokens.is_empty() => {
                self.errors.push(Error::new(span, "say what is read next: `fetch!(&value);`"));
                return parse_quote_spanned!(span=> ());
            }
            Err(error) => {
                self.errors.push(error);
                return parse_quote_spanned!(span=> ());
            }
        };
        let is_fetch = mark == "fetch";
        // Span of the expression, so that the compiler reports type errors there.
        let at = asks.span();
        match (self.is_plain, is_fetch) {
            (true, true) => parse_quote_spanned!(at=> if false { let _ = #asks; }),
            (true, false) => parse_quote_spanned!(at=> if false { #asks; }),
            (false, true) => parse_quote_spanned!(at=> ::sinew_interleave::fetch(#asks).await),
            (false, false) => {
                let ask: TokenStream = quote_spanned!(at=> #asks;);
                parse_quote_spanned!(at=> { #ask ::sinew_interleave::switch().await })
            }
        }
    }
}

impl VisitMut for Marks {
    fn visit_stmt_mut(&mut self, stmt: &mut Stmt) {
        if let Stmt::Macro(found) = stmt
            && let Some(mark) = mark_of(&found.mac)
        {
            let expr = self.rewritten(&found.mac.clone(), mark);
            *stmt = Stmt::Expr(expr, Some(syn::token::Semi(stmt.span())));
            return;
        }
        visit_mut::visit_stmt_mut(self, stmt);
    }

    fn visit_expr_mut(&mut self, expr: &mut Expr) {
        match expr {
            Expr::Macro(found) if mark_of(&found.mac).is_some() => {
                let why = "a mark is a statement of its own: `fetch!(&value);`";
                self.errors.push(Error::new(found.mac.path.span(), why));
            }
            Expr::Closure(_) => self.within("a closure", |marks| visit_mut::visit_expr_mut(marks, expr)),
            Expr::Async(_) => self.within("an async block", |marks| visit_mut::visit_expr_mut(marks, expr)),
            Expr::Await(found) => {
                self.errors
                    .push(Error::new(found.await_token.span, "the plain function cannot await: mark the load instead"));
            }
            _ => visit_mut::visit_expr_mut(self, expr),
        }
    }

    fn visit_item_mut(&mut self, item: &mut syn::Item) {
        self.within("an inner item", |marks| visit_mut::visit_item_mut(marks, item));
    }

    fn visit_macro_mut(&mut self, mac: &mut Macro) {
        if let Some(span) = hidden_mark(mac.tokens.clone()) {
            let why = "a mark inside another macro cannot be seen: move it before, into the function itself";
            self.errors.push(Error::new(span, why));
        }
    }
}

/// Finds a mark among the tokens of another macro.
fn hidden_mark(tokens: TokenStream) -> Option<proc_macro2::Span> {
    let mut mark = None;
    for token in tokens {
        match token {
            TokenTree::Ident(ident) if ident == "fetch" || ident == "switch" => mark = Some(ident.span()),
            TokenTree::Punct(punct) if punct.as_char() == '!' && mark.is_some() => return mark,
            TokenTree::Group(group) => {
                if let Some(span) = hidden_mark(group.stream()) {
                    return Some(span);
                }
                mark = None;
            }
            _ => mark = None,
        }
    }
    None
}

//! Finds the modules that a file's code names, in its `use`s and in paths that begin with `crate`, `self` or `super`.
//!
//! Code for tests is left out.

use proc_macro2::{Delimiter, Group, TokenStream, TokenTree};

/// A module, from its crate's root: `["client", "answers"]`.
pub type Module = Vec<String>;

/// Modules and paths in one file.
#[derive(Debug, Default)]
pub struct Names {
    /// Modules written out in the file.
    pub inline: Vec<Module>,
    /// Modules for tests, in files of their own.
    pub for_tests: Vec<Module>,
    pub named: Vec<Named>,
}

/// A path, as written.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Named {
    /// Module in which it stands.
    pub within: Module,
    pub path: Vec<String>,
    pub import: Import,
}

/// Names that a path brings into its module.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Import {
    /// None: the path stands in code.
    No,
    /// The item that it names, under this name.
    As(String),
    /// Everything in the module that it names.
    All,
}

impl Named {
    /// The path as text.
    pub fn text(&self) -> String {
        let path = self.path.join("::");
        if self.import == Import::All { format!("{path}::*") } else { path }
    }
}

/// Words that begin an item. Anything else that can have an attribute (a field, a match arm) has no such end.
const ITEMS: &[&str] = &[
    "mod",
    "use",
    "fn",
    "impl",
    "struct",
    "enum",
    "union",
    "const",
    "static",
    "trait",
    "type",
    "extern",
    "unsafe",
    "async",
    "macro_rules",
];

/// Reads the file of `module`.
///
/// # Errors
///
/// The text is not Rust.
pub fn read(text: &str, module: &Module) -> Result<Names, String> {
    let tokens: TokenStream = text.parse().map_err(|error| format!("cannot be read as Rust: {error}"))?;
    let mut names = Names::default();
    names.walk(tokens, module);
    Ok(names)
}

impl Names {
    fn walk(&mut self, tokens: TokenStream, within: &Module) {
        let tokens: Vec<TokenTree> = tokens.into_iter().collect();
        let mut at = 0;
        while let Some(token) = tokens.get(at) {
            let rest = &tokens[at..];
            at += match (token, &rest[1..]) {
                (TokenTree::Punct(mark), [TokenTree::Group(attribute), item @ ..])
                    if mark.as_char() == '#' && is_for_tests(attribute) =>
                {
                    2 + self.skip_item(item, within)
                }
                (TokenTree::Ident(word), [TokenTree::Ident(name), TokenTree::Group(body), ..]) if word == "mod" => {
                    let module = [&within[..], &[name.to_string()]].concat();
                    self.walk(body.stream(), &module);
                    self.inline.push(module);
                    3
                }
                (TokenTree::Ident(word), after) if word == "use" => {
                    let len = after.iter().position(|token| is_mark(token, ';')).unwrap_or(after.len());
                    self.read_use(&after[..len], &[], within);
                    1 + len
                }
                (TokenTree::Ident(word), _) if ["crate", "self", "super"].iter().any(|first| word == first) => {
                    let (path, len) = path(rest);
                    if path.len() > 1 {
                        self.named.push(Named { within: within.clone(), path, import: Import::No });
                    }
                    len
                }
                (TokenTree::Group(group), _) => {
                    self.walk(group.stream(), within);
                    1
                }
                _ => 1,
            };
        }
    }

    /// Returns the number of tokens in the item at the start of `tokens`; 0 if there is none. Notes a module for tests.
    fn skip_item(&mut self, tokens: &[TokenTree], within: &Module) -> usize {
        let mut at = 0;
        loop {
            at += match &tokens[at..] {
                [mark, TokenTree::Group(_), ..] if is_mark(mark, '#') => 2,
                [TokenTree::Ident(word), TokenTree::Group(of), ..]
                    if word == "pub" && is_in(of, Delimiter::Parenthesis) =>
                {
                    2
                }
                [TokenTree::Ident(word), ..] if word == "pub" => 1,
                [TokenTree::Ident(word), ..] if ITEMS.iter().any(|item| word == item) => break,
                _ => return 0,
            };
        }
        if let [TokenTree::Ident(word), TokenTree::Ident(name), end, ..] = &tokens[at..]
            && word == "mod"
            && is_mark(end, ';')
        {
            self.for_tests.push([&within[..], &[name.to_string()]].concat());
        }
        let is_last = |token: &TokenTree| match token {
            TokenTree::Group(group) => is_in(group, Delimiter::Brace),
            _ => is_mark(token, ';'),
        };
        tokens[at..].iter().position(is_last).map_or(tokens.len(), |last| at + last + 1)
    }

    /// Reads the tokens between `use` and its semicolon, or those in its braces after the path `before`.
    fn read_use(&mut self, tokens: &[TokenTree], before: &[String], within: &Module) {
        for one in tokens.split(|token| is_mark(token, ',')) {
            let (further, len) = path(one);
            // A path that begins with two colons is another crate's.
            let others = one.first().is_some_and(|first| is_mark(first, ':') && before.is_empty());
            if others || one.is_empty() {
                continue;
            }
            let mut path = [before, &further].concat();
            let import = match &one[len..] {
                [TokenTree::Group(group), ..] => {
                    self.read_use(&group.stream().into_iter().collect::<Vec<_>>(), &path, within);
                    continue;
                }
                [TokenTree::Punct(mark), ..] if mark.as_char() == '*' => Import::All,
                [TokenTree::Ident(word), TokenTree::Ident(name), ..] if word == "as" => Import::As(name.to_string()),
                _ => {
                    if path.len() > 1 && path.last().is_some_and(|last| last == "self") {
                        path.pop();
                    }
                    Import::As(path.last().cloned().unwrap_or_default())
                }
            };
            self.named.push(Named { within: within.clone(), path, import });
        }
    }
}

/// Returns the path at the start of `tokens`, and the number of tokens in it.
fn path(tokens: &[TokenTree]) -> (Vec<String>, usize) {
    let (mut words, mut len) = (Vec::new(), 0);
    loop {
        match &tokens[len..] {
            [TokenTree::Ident(word), ..] if len % 3 == 0 => {
                words.push(word.to_string());
                len += 1;
            }
            [first, second, ..] if is_mark(first, ':') && is_mark(second, ':') && len % 3 == 1 => len += 2,
            _ => return (words, len),
        }
    }
}

fn is_mark(token: &TokenTree, mark: char) -> bool {
    matches!(token, TokenTree::Punct(punct) if punct.as_char() == mark)
}

fn is_in(group: &Group, delimiter: Delimiter) -> bool {
    group.delimiter() == delimiter
}

/// Whether an attribute limits its item to tests.
fn is_for_tests(attribute: &Group) -> bool {
    let text: String = attribute.stream().to_string().split_whitespace().collect();
    is_in(attribute, Delimiter::Bracket) && (text == "cfg(test)" || text.starts_with("cfg(all(test"))
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Paths in the file of module `a`, as text.
    fn named(text: &str) -> Vec<String> {
        read(text, &vec!["a".to_owned()]).unwrap().named.iter().map(Named::text).collect()
    }

    #[test]
    fn each_name_of_a_use_is_found() {
        assert_eq!(named("use crate::b::C;"), ["crate::b::C"]);
        assert_eq!(
            named("pub(crate) use super::{b::{self, C as D, e::*}, f};"),
            ["super::b", "super::b::C", "super::b::e::*", "super::f"]
        );
        assert_eq!(named("use ::b::C; use std::fmt;"), ["std::fmt"], "what is no module here is known later");
    }

    #[test]
    fn a_use_brings_names() {
        let imports = |text: &str| -> Vec<Import> {
            read(text, &Module::new()).unwrap().named.into_iter().map(|named| named.import).collect()
        };
        let names = ["b", "D", "f"].map(|name| Import::As(name.into()));
        assert_eq!(imports("use b::{self, C as D, e::f};"), names);
        assert_eq!(imports("use b::*; fn c() { crate::d() }"), [Import::All, Import::No]);
    }

    #[test]
    fn paths_are_found_wherever_code_names_them() {
        assert_eq!(
            named("fn f(b: &mut crate::b::B<self::C>) { self.d(super::e::F::new(), self) }"),
            ["crate::b::B", "self::C", "super::e::F::new"]
        );
        assert_eq!(
            named("vec![crate::b::C]; macro_rules! m { () => { $crate::d::e!() } }"),
            ["crate::b::C", "crate::d::e"]
        );
    }

    #[test]
    fn comments_and_strings_name_nothing() {
        let text = "//! [`crate::b`]\n/* use crate::b::C; */ /// See [`Rpc`](crate::d).\nconst E: &str = \"crate::f\";";
        assert_eq!(named(text), [] as [&str; 0]);
    }

    #[test]
    fn code_for_tests_names_nothing() {
        for text in [
            "#[cfg(test)] mod tests { use crate::b::C; }",
            "#[cfg(all(test, not(miri)))] #[path = \"x\"] pub(crate) mod tests { use crate::b::C; }",
            "#[cfg(test)] use crate::b::C;",
            "impl A { #[cfg(test)] fn d(&self) -> crate::b::C { crate::b::d() } }",
        ] {
            assert_eq!(named(text), [] as [&str; 0], "{text}");
            assert_eq!(named(&format!("{text} use crate::e;")), ["crate::e"], "{text}");
        }
        assert_eq!(named("#[cfg(not(test))] use crate::b;"), ["crate::b"]);
        assert_eq!(named("struct A { #[cfg(test)] b: u8, c: crate::c::C }"), ["crate::c::C"]);
        let names = read("#[cfg(test)] mod common; mod b;", &vec!["a".to_owned()]).unwrap();
        assert_eq!(names.for_tests, [["a", "common"]]);
    }

    #[test]
    fn a_module_inside_a_file_is_where_its_names_stand() {
        let names = read("mod b { mod c { use super::super::d; } }", &vec!["a".to_owned()]).unwrap();
        assert_eq!(names.inline, [vec!["a", "b", "c"], vec!["a", "b"]]);
        assert_eq!(names.named[0].within, ["a", "b", "c"]);
    }
}

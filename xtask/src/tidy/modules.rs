//! Finds cycles of modules in a crate.
//!
//! A module and those in it may use each other. Between sibling modules, uses go one way: if a module uses a sibling,
//! then neither the sibling nor anything in it may lead back to the module or anything in it, however indirectly. This
//! is checked on every level, and a name that a module only re-exports counts as a use of the module that it comes
//! from. Uses that the code does not name are not seen: a method that another file gives a type, for one.

mod names;

use std::collections::{BTreeMap, BTreeSet};

use super::File;
use names::{Import, Module, Named, Names};

/// Most re-exports through which a name is followed. More than these are taken for a cycle.
const REEXPORTS_MAX: usize = 16;

/// Finds the cycles in the crate whose root is the file `root`.
pub fn check(files: &[File], root: &str) -> Vec<String> {
    let folder = root.rsplit_once('/').map_or("", |(folder, _)| folder);
    let mut findings = Vec::new();
    let mut names = BTreeMap::new();
    for file in files.iter().filter(|file| !file.is_test()) {
        let Some(module) = module_of(file, folder, root) else { continue };
        match names::read(&file.text, &module) {
            Ok(read) => drop(names.insert(module, (file.path.as_str(), read))),
            Err(error) => findings.push(format!("{}: {error}", file.path)),
        }
    }
    let known = Crate::new(&names);
    findings.extend(known.imports_of_everything());
    for (parent, arrows) in known.arrows() {
        let place = [&[folder.to_owned()], &parent[..]].concat().join("/");
        findings.extend(cycles(&arrows).iter().map(|cycle| format!("{place}: {}", sentence(cycle, &arrows))));
    }
    findings
}

/// Returns the module that a file holds, in the crate whose sources lie in `folder`.
fn module_of(file: &File, folder: &str, root: &str) -> Option<Module> {
    if file.path == root {
        return Some(Module::new());
    }
    let inside = file.path.strip_prefix(folder)?.strip_prefix('/')?.strip_suffix(".rs")?;
    let inside = inside.strip_suffix("/mod").unwrap_or(inside);
    Some(inside.split('/').map(str::to_owned).collect())
}

/// The modules of a crate, and the names in each of them.
struct Crate<'a> {
    /// By module: the path of its file, and the names in it.
    files: BTreeMap<&'a Module, (&'a str, &'a Names)>,
    modules: BTreeSet<&'a [String]>,
    /// By module and imported name: the path that the name stands for.
    imports: BTreeMap<(&'a [String], &'a str), &'a [String]>,
}

/// Uses between sibling modules, by user and used: the names concerned, and their files.
type Arrows = BTreeMap<(String, String), Vec<String>>;

impl<'a> Crate<'a> {
    fn new(names: &'a BTreeMap<Module, (&'a str, Names)>) -> Self {
        let for_tests: Vec<&Module> = names.values().flat_map(|(_, names)| &names.for_tests).collect();
        let shipped = |module: &&Module| !for_tests.iter().any(|tests| module.starts_with(tests));
        let files: BTreeMap<_, _> = names
            .iter()
            .map(|(module, (path, names))| (module, (*path, names)))
            .filter(|(module, _)| shipped(module))
            .collect();
        let inline = files.values().flat_map(|(_, names)| &names.inline);
        let modules = files.keys().copied().chain(inline).map(Vec::as_slice).collect();
        let mut imports = BTreeMap::new();
        for named in files.values().flat_map(|(_, names)| &names.named) {
            if let Import::As(name) = &named.import {
                imports.insert((named.within.as_slice(), name.as_str()), named.path.as_slice());
            }
        }
        Self { files, modules, imports }
    }

    /// Returns the module that a path in the module `within` leads to, and whether the path ends there; `None` if it
    /// leads to another crate.
    fn target(&self, within: &[String], path: &[String], reexports: usize) -> Option<(Module, bool)> {
        if reexports > REEXPORTS_MAX {
            return None;
        }
        let (first, mut rest) = path.split_first()?;
        let mut at = within.to_vec();
        match first.as_str() {
            "crate" => at.clear(),
            "self" => {}
            "super" => drop(at.pop()),
            // A name that the module itself has. Any other is that of a crate.
            name => {
                let inside = [within, &[name.to_owned()]].concat();
                if !self.modules.contains(&inside[..]) && !self.imports.contains_key(&(within, name)) {
                    return None;
                }
                rest = path;
            }
        }
        while let Some((name, further)) = rest.split_first() {
            if name == "super" {
                at.pop();
            } else if name != "self" {
                at.push(name.clone());
                if !self.modules.contains(at.as_slice()) {
                    at.pop();
                    let origin = self.imports.get(&(&at, name)).map(|import| [*import, further].concat());
                    let origin = origin.and_then(|origin| self.target(&at, &origin, reexports + 1));
                    return Some(origin.unwrap_or((at, false)));
                }
            }
            rest = further;
        }
        Some((at, true))
    }

    /// Returns the module whose file a module is written in.
    fn file_of<'m>(&self, module: &'m [String]) -> &'m [String] {
        let is_file = |len: &usize| self.files.keys().any(|file| file[..] == module[..*len]);
        &module[..(0..=module.len()).rev().find(is_file).unwrap_or(0)]
    }

    fn named(&self) -> impl Iterator<Item = (&'a str, &'a Named)> {
        self.files.values().flat_map(|(path, names)| names.named.iter().map(|named| (*path, named)))
    }

    /// Whether a module's file uses names of other modules, which it could re-export.
    fn uses_others(&self, module: &[String]) -> bool {
        let file = self.file_of(module);
        let (_, names) = self.files[&file.to_vec()];
        names.named.iter().any(|named| self.target(&named.within, &named.path, 0).is_some())
    }

    /// Finds imports of everything in another module. Through them a name could come from anywhere unseen, unless that
    /// module has only its own.
    fn imports_of_everything(&self) -> Vec<String> {
        let all = self.named().filter(|(_, named)| named.import == Import::All);
        let unseen = all.filter(|(_, named)| match self.target(&named.within, &named.path, 0) {
            Some((module, true)) => {
                !self.file_of(&module).starts_with(self.file_of(&named.within)) && self.uses_others(&module)
            }
            _ => false,
        });
        let finding = |path: &str, named: &Named| {
            format!("{path}: `use {}`: name what is used, so that cycles of modules can be seen", named.text())
        };
        unseen.map(|(path, named)| finding(path, named)).collect()
    }

    /// By parent: the uses between the modules in it.
    fn arrows(&self) -> BTreeMap<Module, Arrows> {
        let mut all: BTreeMap<Module, Arrows> = BTreeMap::new();
        for (path, named) in self.named() {
            let Some((target, _)) = self.target(&named.within, &named.path, 0) else { continue };
            let (from, to) = (self.file_of(&named.within), self.file_of(&target));
            let common = from.iter().zip(to).take_while(|(a, b)| a == b).count();
            // A module may use one that contains it, or that it contains.
            let (Some(from), Some(to)) = (from.get(common), to.get(common)) else { continue };
            let arrows = all.entry(target[..common].to_vec()).or_default();
            let reasons = arrows.entry((from.clone(), to.clone())).or_default();
            let what = format!("`{}` in {path}", named.text());
            if !reasons.contains(&what) {
                reasons.push(what);
            }
        }
        all
    }
}

/// Returns the shortest cycle of each set of modules that all reach each other.
fn cycles(arrows: &Arrows) -> Vec<Vec<&str>> {
    let mut cycles: Vec<Vec<&str>> = Vec::new();
    let mut seen: BTreeSet<&str> = BTreeSet::new();
    for (start, _) in arrows.keys() {
        if seen.contains(start.as_str()) {
            continue;
        }
        let from_here = reachable(arrows, start);
        let together: Vec<&str> =
            from_here.into_iter().filter(|module| reachable(arrows, module).contains(start.as_str())).collect();
        seen.extend(&together);
        cycles.extend(together.iter().filter_map(|module| cycle(arrows, module)).min_by_key(Vec::len));
    }
    cycles
}

/// Returns the modules that uses lead to from a module, in one step or more.
fn reachable<'a>(arrows: &'a Arrows, from: &str) -> BTreeSet<&'a str> {
    let mut reached = BTreeSet::new();
    let mut left = vec![from];
    while let Some(module) = left.pop() {
        for (_, to) in arrows.keys().filter(|(from, _)| from == module) {
            if reached.insert(to.as_str()) {
                left.push(to);
            }
        }
    }
    reached
}

/// Returns a shortest path from a module to itself.
fn cycle<'a>(arrows: &'a Arrows, start: &'a str) -> Option<Vec<&'a str>> {
    let mut paths = vec![vec![start]];
    let mut reached = BTreeSet::new();
    while !paths.is_empty() {
        let mut longer = Vec::new();
        for path in paths {
            for (_, to) in arrows.keys().filter(|(from, _)| Some(&from.as_str()) == path.last()) {
                if to == start {
                    return Some(path);
                }
                if reached.insert(to) {
                    longer.push([&path[..], &[to]].concat());
                }
            }
        }
        paths = longer;
    }
    None
}

fn sentence(cycle: &[&str], arrows: &Arrows) -> String {
    let steps = cycle.iter().zip(cycle.iter().cycle().skip(1)).map(|(from, to)| {
        let reasons = &arrows[&((*from).to_owned(), (*to).to_owned())];
        format!("\n    {from} uses {to}: {}", reasons.join(", "))
    });
    format!("modules form a cycle:{}", steps.collect::<String>())
}

#[cfg(test)]
mod tests {
    use super::*;

    const CLEAN: [&str; 0] = [];

    /// Findings in a crate of these files.
    fn found(files: &[(&str, &str)]) -> Vec<String> {
        let file = |(name, text): &(&str, &str)| File { path: format!("x/src/{name}"), text: (*text).into() };
        check(&files.iter().map(file).collect::<Vec<_>>(), "x/src/lib.rs")
    }

    #[test]
    fn modules_beside_each_other_use_each_other_one_way_only() {
        let a = ("a.rs", "use crate::b::B;");
        assert_eq!(found(&[a, ("b.rs", "")]), CLEAN);
        assert_eq!(
            found(&[a, ("b.rs", "fn f() { crate::a::g() }")]),
            ["x/src: modules form a cycle:\n    a uses b: `crate::b::B` in x/src/a.rs\n    \
             b uses a: `crate::a::g` in x/src/b.rs"]
        );
    }

    #[test]
    fn a_module_and_those_in_it_may_use_each_other() {
        let files = [
            ("lib.rs", "mod a; pub use a::A; fn f() { a::g() }"),
            ("a.rs", "mod b; mod c; use b::B; use c::C; use crate::f;"),
            ("a/b.rs", "use super::A; use crate::f;"),
            ("a/c.rs", "use super::A; use super::b::D;"),
        ];
        assert_eq!(found(&files), CLEAN);
    }

    #[test]
    fn modules_inside_another_are_beside_each_other_too() {
        let findings = found(&[("a.rs", ""), ("a/b.rs", "use super::c::C;"), ("a/c.rs", "use crate::a::b::B;")]);
        assert_eq!(findings.len(), 1);
        assert!(findings[0].starts_with("x/src/a: modules form a cycle:\n    b uses c"), "{findings:?}");
    }

    #[test]
    fn what_lies_in_a_module_uses_on_its_behalf() {
        let findings = found(&[("a.rs", "mod c;"), ("a/c.rs", "use crate::b::B;"), ("b.rs", "use crate::a::A;")]);
        assert_eq!(findings.len(), 1, "{findings:?}");
        assert!(findings[0].contains("a uses b: `crate::b::B` in x/src/a/c.rs"), "{findings:?}");
    }

    #[test]
    fn a_long_cycle_is_found_and_the_shortest_is_shown() {
        let files = [
            ("a.rs", "use crate::b;"),
            ("b.rs", "use crate::c;"),
            ("c.rs", "use crate::d;"),
            ("d.rs", "use crate::a;"),
        ];
        let findings = found(&files);
        assert_eq!((findings.len(), findings[0].lines().count()), (1, 5), "{findings:?}");
        let short = found(&[&files[..], &[("e.rs", "use crate::f;"), ("f.rs", "use crate::{e, a};")]].concat());
        assert_eq!((short.len(), short[0].lines().count(), short[1].lines().count()), (2, 5, 3), "{short:?}");
        let joined = found(&[&files[..3], &[("d.rs", "use crate::{a, c};")]].concat());
        assert_eq!((joined.len(), joined[0].lines().count()), (1, 3), "{joined:?}");
    }

    #[test]
    fn a_name_is_used_of_the_module_that_it_comes_from() {
        let root = ("lib.rs", "mod a; mod b; pub use b::{B, C as D};");
        for text in ["use crate::B;", "fn f() -> crate::D {}", "use crate::{B as E};"] {
            assert_eq!(found(&[root, ("a.rs", text), ("b.rs", "use crate::a::A;")]).len(), 1, "{text}");
        }
        let passed_on =
            [("a.rs", "mod c; mod d; pub use c::C;"), ("a/c.rs", "use super::d::D;"), ("a/d.rs", "use super::C;")];
        assert_eq!(found(&passed_on).len(), 1);
    }

    #[test]
    fn names_that_lead_in_a_cycle_are_followed_to_an_end() {
        let files =
            [("lib.rs", "pub use a::A;"), ("a.rs", "pub use crate::b::A;"), ("b.rs", "pub use crate::A; use std;")];
        assert!(found(&files).len() < 2);
    }

    #[test]
    fn importing_everything_of_another_module_hides_what_is_used() {
        let inner = ("a/b.rs", "use super::*;");
        assert_eq!(
            found(&[("a.rs", "mod b; use crate::c::C;"), inner, ("c.rs", "")]),
            ["x/src/a/b.rs: `use super::*`: name what is used, so that cycles of modules can be seen"]
        );
        assert_eq!(found(&[("a.rs", "pub use b::*; use Kind::*; mod c { use super::*; }"), ("a/b.rs", "")]), CLEAN);
        assert_eq!(found(&[("a.rs", "use crate::b::Kind::*;"), ("b.rs", "")]), CLEAN);
        let of_b = ("a.rs", "use crate::b::*;");
        assert_eq!(found(&[of_b, ("b.rs", "pub use crate::c::C;"), ("c.rs", "")]).len(), 1);
    }

    #[test]
    fn everything_of_a_module_that_has_only_its_own_may_be_imported_and_is_a_use_of_it() {
        let (all, alone) = (("a.rs", "use crate::b::*;"), ("b.rs", "pub use std::fmt; pub struct B;"));
        assert_eq!(found(&[all, alone]), CLEAN);
        let from_c = [all, alone, ("c.rs", "use crate::a::A;"), ("b/d.rs", "use crate::c::C;")];
        let findings = found(&from_c);
        assert!(findings.len() == 1 && findings[0].contains("a uses b: `crate::b"), "{findings:?}");
    }

    #[test]
    fn tests_use_what_they_like() {
        let a = ("a.rs", "use crate::b;");
        assert_eq!(found(&[a, ("b.rs", "#[cfg(test)] mod tests { use crate::a; }")]), CLEAN);
        assert_eq!(found(&[a, ("b.rs", "#[cfg(test)] mod tests;"), ("b/tests.rs", "use crate::a::*;")]), CLEAN);
        let named_otherwise = [a, ("b.rs", "#[cfg(test)] mod facts;"), ("b/facts.rs", "use crate::a::*;")];
        assert_eq!(found(&named_otherwise), CLEAN);
    }

    #[test]
    fn what_is_no_rust_is_said() {
        assert!(found(&[("a.rs", "fn f() {")])[0].starts_with("x/src/a.rs: cannot be read as Rust"));
    }
}

//! The part of `cargo metadata` that the checks read.

use std::collections::HashMap;

use anyhow::Context;
use serde::Deserialize;

use crate::process;

/// Output of `cargo metadata`.
#[derive(Debug, Deserialize)]
pub struct Metadata {
    pub packages: Vec<Package>,
    pub workspace_members: Vec<String>,
    #[serde(default)]
    pub workspace_default_members: Vec<String>,
    pub resolve: Option<Resolve>,
}

#[derive(Debug, Deserialize)]
pub struct Package {
    pub id: String,
    pub name: String,
    pub version: String,
    pub links: Option<String>,
    #[serde(default)]
    pub dependencies: Vec<Dependency>,
    #[serde(default)]
    pub targets: Vec<Target>,
}

/// A library, program or test file of a package.
#[derive(Debug, Deserialize)]
pub struct Target {
    pub name: String,
    pub kind: Vec<String>,
}

/// A line of a manifest's dependencies.
#[derive(Debug, Deserialize)]
pub struct Dependency {
    pub name: String,
    #[serde(default)]
    pub kind: Kind,
}

/// Table of a manifest that names a dependency; cargo writes `null` for `[dependencies]`.
#[derive(Clone, Copy, Debug, Default, Deserialize, PartialEq, Eq)]
#[serde(from = "Option<String>")]
pub enum Kind {
    #[default]
    Normal,
    Dev,
    Build,
}

impl From<Option<String>> for Kind {
    fn from(kind: Option<String>) -> Self {
        match kind.as_deref() {
            Some("dev") => Self::Dev,
            Some("build") => Self::Build,
            _ => Self::Normal,
        }
    }
}

/// Resolved dependency graph, for one platform and set of features.
#[derive(Debug, Deserialize)]
pub struct Resolve {
    pub nodes: Vec<Node>,
}

#[derive(Debug, Deserialize)]
pub struct Node {
    pub id: String,
    pub deps: Vec<NodeDependency>,
}

#[derive(Debug, Deserialize)]
pub struct NodeDependency {
    pub pkg: String,
    pub dep_kinds: Vec<DependencyKind>,
}

#[derive(Debug, Deserialize)]
pub struct DependencyKind {
    #[serde(default)]
    pub kind: Kind,
}

impl Metadata {
    /// Reads the workspace's own packages and their manifests; needs no network.
    pub fn of_workspace() -> anyhow::Result<Self> {
        Self::read(&["--no-deps"])
    }

    /// Reads every package that is built for this machine, and the graph of their dependencies.
    pub fn of_build() -> anyhow::Result<Self> {
        let version = process::output(std::process::Command::new("rustc").arg("-vV"))?;
        let host = version.lines().find_map(|line| line.strip_prefix("host: ")).context("rustc -vV names no host")?;
        Self::read(&["--filter-platform", host])
    }

    fn read(args: &[&str]) -> anyhow::Result<Self> {
        let json = process::output(process::cargo().args(["metadata", "--format-version", "1"]).args(args))?;
        serde_json::from_str(&json).context("cargo metadata wrote something unexpected")
    }

    /// The workspace's own packages.
    pub fn members(&self) -> impl Iterator<Item = &Package> {
        self.packages.iter().filter(|package| self.workspace_members.contains(&package.id))
    }

    /// Every package that a build of the default members compiles. Dependencies and build dependencies count,
    /// dev-dependencies do not.
    pub fn default_build(&self) -> anyhow::Result<Vec<&Package>> {
        let resolve = self.resolve.as_ref().context("the metadata has no resolved graph")?;
        let nodes: HashMap<&str, &Node> = resolve.nodes.iter().map(|node| (node.id.as_str(), node)).collect();
        let mut reached: Vec<&str> = self.workspace_default_members.iter().map(String::as_str).collect();
        let mut next = 0;
        while let Some(id) = reached.get(next) {
            next += 1;
            let node = nodes.get(id).with_context(|| format!("{id} is not in the resolved graph"))?;
            for dependency in &node.deps {
                let built = dependency.dep_kinds.iter().any(|kind| kind.kind != Kind::Dev);
                if built && !reached.contains(&dependency.pkg.as_str()) {
                    reached.push(&dependency.pkg);
                }
            }
        }
        Ok(self.packages.iter().filter(|package| reached.contains(&package.id.as_str())).collect())
    }
}

//! Finds words that do not belong in comments and documents.

use anyhow::Context;

use super::File;
use crate::process;

/// Path of the list, from the workspace's root.
const LIST: &str = "xtask/words.txt";

/// The words of the list.
pub struct Words(Vec<Word>);

struct Word {
    /// The word in lower case, without the star.
    text: String,
    /// Whether it also matches longer words that begin with it.
    prefix: bool,
    advice: String,
}

impl Words {
    /// Reads the checked-in list.
    pub fn read() -> anyhow::Result<Self> {
        let text = std::fs::read_to_string(process::workspace_root().join(LIST));
        Self::parse(&text.with_context(|| format!("cannot read {LIST}"))?)
    }

    fn parse(text: &str) -> anyhow::Result<Self> {
        let lines = text.lines().map(str::trim).filter(|line| !line.is_empty() && !line.starts_with('#'));
        let words = lines.map(|line| {
            let (word, advice) = line.split_once(": ").with_context(|| format!("{LIST}: `{line}` has no advice"))?;
            let prefix = word.ends_with('*');
            Ok(Word { text: word.trim_end_matches('*').to_lowercase(), prefix, advice: advice.to_owned() })
        });
        words.collect::<anyhow::Result<_>>().map(Self)
    }

    /// Returns the words found in a document, or in the comments of a source file.
    pub fn check(&self, file: &File) -> Vec<String> {
        let prose_only = file.path.ends_with(".md");
        let mut findings = Vec::new();
        for (number, line) in file.lines() {
            let prose = if prose_only { line } else { comment_of(line) };
            let prose = prose.to_lowercase();
            for word in self.0.iter().filter(|word| word.is_in(&prose)) {
                findings.push(format!("{}:{number}: `{}`: {}", file.path, word.text, word.advice));
            }
        }
        findings
    }
}

impl Word {
    fn is_in(&self, prose: &str) -> bool {
        let edge = |c: Option<char>| c.is_none_or(|c| !c.is_alphanumeric() && c != '_');
        let starts_as_word = self.text.starts_with(char::is_alphanumeric);
        let ends_as_word = self.text.ends_with(char::is_alphanumeric) && !self.prefix;
        prose.match_indices(&self.text).any(|(at, _)| {
            (!starts_as_word || edge(prose[..at].chars().next_back()))
                && (!ends_as_word || edge(prose[at + self.text.len()..].chars().next()))
        })
    }
}

fn comment_of(line: &str) -> &str {
    &line[super::code_of(line).len()..]
}

#[cfg(test)]
mod tests {
    use super::*;

    fn findings(path: &str, text: &str) -> usize {
        let words =
            Words::parse("# list\nsurely: leave it out\nutiliz*: use\n/opt/: a path: of one machine\n").unwrap();
        words.check(&File { path: path.into(), text: text.into() }).len()
    }

    #[test]
    fn words_are_found_whole_and_beginnings_as_beginnings() {
        assert_eq!(findings("a.md", "It Surely utilizes."), 2);
        assert_eq!(findings("a.md", "unsurely, surelyfied, reutilize"), 0);
        assert_eq!(findings("a.md", "see /opt/thing"), 1);
    }

    #[test]
    fn names_in_code_are_free_and_comments_are_not() {
        assert_eq!(findings("a.rs", "let surely = 1;"), 0);
        assert_eq!(findings("a.rs", "let a = 1; // surely one"), 1);
    }

    #[test]
    fn a_word_without_advice_is_refused() {
        assert!(Words::parse("word").is_err());
    }
}

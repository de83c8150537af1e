//! Checks names and comments of `src` and `tests` against the language rules of docs/CONTRIBUTING.md.
//!
//! The rules are heuristics. `allowed_names.txt` lists names that they find but that are right, each with its reason.

use std::{
    collections::{BTreeMap, BTreeSet},
    fs,
    path::Path,
};

use regex::Regex;

use crate::docs::{ROOT, for_each_file};

/// The most characters of a test's name.
const MAX_TEST_NAME_CHARS: usize = 60;

/// Participles and past tenses that do not end in "ed".
const IRREGULAR: &str = "said told heard held kept lent meant sent made found seen known given taken left gone done begun shown \
    chosen bound sought put lost built shaken spoken written read thought brought bought caught taught felt dealt spent won run \
    set cut hit let grown drawn";

const PRONOUNS: &str = "who whose whom which what where when why how here there elsewhere other others another none any some all \
    both each either neither such same else self this that these those one ones";

const PREPOSITIONS: &str =
    "of at by on in out off up over under with within without from to into for about against aside anew";

/// Nouns that were used as metaphors.
const METAPHORS: &str = "ear ground room place lot course way ways word visit visits homebound twins air yard board desk house \
    door roof voice mouth hand hands eye eyes face heart guest matter thing things stuff deed deeds";

/// Participles that are established names of a state, an outcome or a wrapper.
const ESTABLISHED_NAMES: &str = "limited bounded shared typed buffered embedded signed unsigned pinned tagged nested indexed ordered \
    sorted cached read set run one closed failed rejected approved applied expired hit cancelled disconnected connected started \
    stopped updated";

/// Functions whose single word is a convention of Rust or a verb as well.
const ESTABLISHED_FUNCTIONS: &str =
    "from into to not with within one all each any on read set put cut let run hit found left";

/// Words that are established names of fields, such as `at` for a time and `by` for an actor.
const ESTABLISHED_FIELDS: &str = "all at by cut from other out to when with within";

/// Words that are established names of states, outcomes and choices.
const ESTABLISHED_VARIANTS: &str = "all any cut done found held lost none off on one other put same";

/// A word at the beginning of a comment that makes a fragment of it.
const FRAGMENT: &str = r"^(See the module's page|What|Who|Whose|Whom|Whether|Where|How|Of|As|By which|That|Which|Such|Than|To whom|From|In|At|With|Without|For|Against|Until|While|Since)\b";

/// A sentence may begin with a phrase such as "In a batch, …" or "With 2 nodes …".
const INTRODUCTION: &str = r"^(From|At|In|For|With|Without|Until|While|Since|Where|As|Than|Of) [^.]*?(\d|, (a|an|the|each|every|it|this|that|no|all|one|they|we|you)\b)";

struct Rules {
    type_name: Regex,
    constant: Regex,
    function: Regex,
    /// The beginning of a struct or an enum, with its indentation.
    members: Regex,
    field: Regex,
    variant: Regex,
    comment: Regex,
    fragment: Regex,
    introduction: Regex,
}

/// A place that breaks a rule: the kind of name, the name or the comment, and the file with its line.
struct Finding {
    kind: &'static str,
    name: String,
    location: String,
}

impl Rules {
    fn new() -> Self {
        let regex = |pattern: &str| Regex::new(pattern).unwrap();
        Self {
            type_name: regex(r"^\s*(?:pub(?:\([^)]*\))? )?(?:struct|enum|trait|type) ([A-Z]\w*)"),
            constant: regex(r"^\s*(?:pub(?:\([^)]*\))? )?(?:const|static) ([A-Z][A-Z0-9_]*):"),
            function: regex(r"^\s*(?:pub(?:\([^)]*\))? )?(?:const )?(?:async )?fn (\w+)"),
            members: regex(r"^(\s*)(?:pub(?:\([^)]*\))? )?(?:struct|enum) \w+.*\{$"),
            field: regex(r"^\s+(?:pub(?:\([^)]*\))? )?([a-z]\w*): "),
            variant: regex(r"^\s+([A-Z]\w*)(?:,|\(| \{)"),
            comment: regex(r"^\s*//[/!] ?(.*)"),
            fragment: regex(FRAGMENT),
            introduction: regex(INTRODUCTION),
        }
    }

    fn check(&self, text: &str, location: &str, findings: &mut Vec<Finding>) {
        let lines: Vec<&str> = text.lines().collect();
        let mut inside_comment = false;
        let mut end_of_members = None;
        for (index, line) in lines.iter().enumerate() {
            let name_in = |rule: &Regex| rule.captures(line).map(|found| found[1].to_owned());
            let mut report =
                |kind, name| findings.push(Finding { kind, name, location: format!("{location}:{}", index + 1) });
            if let Some(name) = name_in(&self.type_name).filter(|name| is_unclear(name)) {
                report("type", name);
            }
            if let Some(name) = name_in(&self.constant).filter(|name| is_unclear(name)) {
                report("constant", name);
            }
            if let Some(name) = name_in(&self.function) {
                let attributes = &lines[index.saturating_sub(3)..index];
                let is_test =
                    attributes.iter().any(|line| line.trim_start().starts_with("#[") && line.contains("test"));
                if is_test && name.len() > MAX_TEST_NAME_CHARS {
                    report("test", name);
                } else if !is_test && is_unclear_function(&name) {
                    report("function", name);
                }
            }
            if let Some(indentation) = name_in(&self.members) {
                end_of_members = Some(indentation + "}");
            } else if end_of_members.as_deref() == Some(*line) {
                end_of_members = None;
            } else if end_of_members.is_some() {
                let rules =
                    [("field", &self.field, ESTABLISHED_FIELDS), ("variant", &self.variant, ESTABLISHED_VARIANTS)];
                for (kind, rule, established) in rules {
                    if let Some(name) = name_in(rule).filter(|name| is_unclear_member(name, established)) {
                        report(kind, name);
                    }
                }
            }
            let comment = name_in(&self.comment);
            if let Some(comment) = comment.as_ref().filter(|_| !inside_comment)
                && self.fragment.is_match(comment)
                && !self.introduction.is_match(comment)
            {
                report("comment", comment.clone());
            }
            inside_comment = comment.is_some();
        }
    }
}

fn is_word_of(list: &str, word: &str) -> bool {
    list.split_whitespace().any(|listed| listed == word)
}

/// Returns `true` for a single word that is a pronoun, a preposition, a participle or a metaphor.
fn is_unclear(name: &str) -> bool {
    let is_single =
        !name.contains('_') && (name.chars().skip(1).all(char::is_lowercase) || name.chars().all(char::is_uppercase));
    let word = name.to_lowercase();
    let is_participle = word.len() > 4 && word.ends_with("ed") && !matches!(word.as_str(), "feed" | "speed");
    is_single
        && !is_word_of(ESTABLISHED_NAMES, &word)
        && (is_participle || [IRREGULAR, PRONOUNS, PREPOSITIONS, METAPHORS].iter().any(|list| is_word_of(list, &word)))
}

fn is_unclear_function(name: &str) -> bool {
    !is_word_of(ESTABLISHED_FUNCTIONS, name)
        && ([IRREGULAR, PRONOUNS, PREPOSITIONS].iter().any(|list| is_word_of(list, name))
            || matches!(
                name,
                "asked" | "named" | "passed" | "noted" | "owed" | "silent" | "well" | "speak" | "word" | "ways"
            ))
}

/// Returns `true` for a field or a variant that is only a pronoun, a preposition or an irregular participle. Participles that
/// end in "ed" are usual names of flags and states.
fn is_unclear_member(name: &str, established: &str) -> bool {
    let word = name.to_lowercase();
    ![ESTABLISHED_NAMES, established].iter().any(|list| is_word_of(list, &word))
        && [IRREGULAR, PRONOUNS, PREPOSITIONS].iter().any(|list| is_word_of(list, &word))
}

/// Reads the exceptions: a kind, a name and a reason on each line.
fn exceptions() -> BTreeMap<(String, String), bool> {
    let text = fs::read_to_string(Path::new(ROOT).join("tests/operations/allowed_names.txt")).unwrap();
    let lines = text.lines().filter(|line| !line.is_empty() && !line.starts_with('#'));
    let entries = lines.map(|line| {
        let (name, reason) = line.split_once(" - ").unwrap_or_else(|| panic!("without a reason: {line}"));
        assert!(!reason.trim().is_empty(), "without a reason: {line}");
        let (kind, name) = name.split_once(' ').unwrap_or_else(|| panic!("without a kind: {line}"));
        ((kind.to_owned(), name.trim().to_owned()), false)
    });
    entries.collect()
}

#[test]
fn names_and_comments_follow_the_language_rules() {
    let rules = Rules::new();
    let mut findings = Vec::new();
    let mut check_file = |file: &Path| {
        if file.extension().is_none_or(|extension| extension != "rs") {
            return;
        }
        let location = file.strip_prefix(ROOT).unwrap().display().to_string();
        if is_unclear(file.file_stem().unwrap().to_str().unwrap()) {
            findings.push(Finding { kind: "file", name: location.clone(), location: location.clone() });
        }
        rules.check(&fs::read_to_string(file).unwrap(), &location, &mut findings);
    };
    for folder in ["src", "tests"] {
        for_each_file(&Path::new(ROOT).join(folder), &mut check_file);
    }
    let mut exceptions = exceptions();
    findings.retain(|finding| match exceptions.get_mut(&(finding.kind.to_owned(), finding.name.clone())) {
        Some(is_used) => {
            *is_used = true;
            false
        }
        None => true,
    });
    let found: BTreeSet<String> =
        findings.iter().map(|Finding { kind, name, location }| format!("{location}: {kind} {name}")).collect();
    assert!(found.is_empty(), "{} unclear names or comments:\n{found:#?}", found.len());
    let unused: Vec<_> = exceptions.iter().filter(|(_, is_used)| !**is_used).map(|(entry, _)| entry).collect();
    assert!(unused.is_empty(), "exceptions that nothing needs: {unused:#?}");
}

#[test]
fn unclear_names_and_fragments_are_found() {
    let text = "/// What was told.\nstruct Told;\nconst SOON: u8 = 1;\nconst LEFT: u8 = 1;\nfn of() {}\nfn attach_token() {}\n\
        /// Returns a node.\nstruct RemoteNode;\n#[test]\nfn this_name_of_a_test_has_too_many_characters_for_one_line_of_a_report() {}\n\
        pub struct Call {\n    pub known: u8,\n    known_tools: u8,\n    at: u8,\n}\nlet why: u8 = 1;\nenum State {\n    Seen(u8),\n    Done,\n}\n";
    let mut findings = Vec::new();
    Rules::new().check(text, "x.rs", &mut findings);
    let found: Vec<_> = findings.iter().map(|finding| (finding.kind, finding.location.as_str())).collect();
    assert_eq!(
        found,
        [
            ("comment", "x.rs:1"),
            ("type", "x.rs:2"),
            ("constant", "x.rs:4"),
            ("function", "x.rs:5"),
            ("test", "x.rs:10"),
            ("field", "x.rs:12"),
            ("variant", "x.rs:18")
        ]
    );
}

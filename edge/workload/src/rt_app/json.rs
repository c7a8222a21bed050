//! JSON as rt-app and workgen read it. Unlike standard JSON, the files have comments, commas at the
//! end of lists, and keys that occur several times in one object. The order of such keys has a
//! meaning.

use std::fmt;

use serde::de::{Error, MapAccess, SeqAccess, Visitor};
use serde::{Deserialize, Deserializer};

use crate::SourceFile;
use crate::error::WorkloadError;

/// Value of a file. Objects keep the order of their keys.
#[derive(Clone, Debug, PartialEq)]
pub(crate) enum Node {
    Object(Vec<(String, Node)>),
    List(Vec<Node>),
    Text(String),
    Number(i64),
    Flag(bool),
    Null,
}

impl Node {
    pub(crate) fn object(&self) -> Option<&[(String, Node)]> {
        if let Node::Object(fields) = self { Some(fields) } else { None }
    }

    /// Returns the value of a key. If the key occurs several times, the last value counts.
    pub(crate) fn get(&self, key: &str) -> Option<&Node> {
        let fields = self.object()?;
        fields.iter().rev().find(|(name, _)| name == key).map(|(_, node)| node)
    }

    pub(crate) fn number(&self) -> Option<i64> {
        if let Node::Number(number) = *self { Some(number) } else { None }
    }

    pub(crate) fn text(&self) -> Option<&str> {
        if let Node::Text(text) = self { Some(text) } else { None }
    }
}

/// Maximum depth of objects and lists. The parser calls itself for each level.
const DEEPEST: usize = 64;

/// Parses a file of rt-app.
pub(crate) fn parse(file: &SourceFile<'_>) -> Result<Node, WorkloadError> {
    let text = std::str::from_utf8(file.bytes)
        .map_err(|_| WorkloadError::file(file.name, "the file is not UTF-8 text"))?;
    if depth(text) > DEEPEST {
        let why = format!("objects and lists are nested deeper than {DEEPEST} levels");
        return Err(WorkloadError::file(file.name, why));
    }
    json5::from_str(text).map_err(|error| {
        WorkloadError::file(file.name, error.to_string()).advise("name a JSON file of rt-app")
    })
}

/// Returns the largest number of brackets that are open at the same time. Brackets in texts and
/// comments count too, so the depth of the values is at most this number.
fn depth(text: &str) -> usize {
    let (mut depth, mut deepest) = (0_usize, 0);
    for byte in text.bytes() {
        match byte {
            b'{' | b'[' => depth += 1,
            b'}' | b']' => depth = depth.saturating_sub(1),
            _ => {}
        }
        deepest = deepest.max(depth);
    }
    deepest
}

impl<'de> Deserialize<'de> for Node {
    fn deserialize<D: Deserializer<'de>>(from: D) -> Result<Node, D::Error> {
        from.deserialize_any(NodeVisitor)
    }
}

struct NodeVisitor;

impl<'de> Visitor<'de> for NodeVisitor {
    type Value = Node;

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("an object, a list, a text, a whole number, true or false")
    }

    fn visit_bool<E: Error>(self, flag: bool) -> Result<Node, E> {
        Ok(Node::Flag(flag))
    }

    fn visit_i64<E: Error>(self, number: i64) -> Result<Node, E> {
        Ok(Node::Number(number))
    }

    fn visit_u64<E: Error>(self, number: u64) -> Result<Node, E> {
        i64::try_from(number).map(Node::Number).map_err(|_| E::custom("the number is too large"))
    }

    fn visit_f64<E: Error>(self, number: f64) -> Result<Node, E> {
        // Some parsers give every number in this form. A fraction of a microsecond has no meaning.
        let text = number.to_string();
        text.parse()
            .map(Node::Number)
            .map_err(|_| E::custom(format!("`{text}` is not a whole number")))
    }

    fn visit_str<E: Error>(self, text: &str) -> Result<Node, E> {
        Ok(Node::Text(text.to_owned()))
    }

    fn visit_unit<E: Error>(self) -> Result<Node, E> {
        Ok(Node::Null)
    }

    fn visit_none<E: Error>(self) -> Result<Node, E> {
        Ok(Node::Null)
    }

    fn visit_seq<A: SeqAccess<'de>>(self, mut list: A) -> Result<Node, A::Error> {
        let mut all = Vec::new();
        while let Some(node) = list.next_element()? {
            all.push(node);
        }
        Ok(Node::List(all))
    }

    fn visit_map<A: MapAccess<'de>>(self, mut map: A) -> Result<Node, A::Error> {
        let mut fields = Vec::new();
        while let Some(field) = map.next_entry()? {
            fields.push(field);
        }
        Ok(Node::Object(fields))
    }
}

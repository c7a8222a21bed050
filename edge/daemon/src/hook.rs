//! Parser of the reservation that a libvirt domain requests in its metadata:
//!
//! ```xml
//! <metadata>
//!   <slackline:reservation xmlns:slackline='urn:slackline:1' slice='2ms' period='10ms'/>
//! </metadata>
//! ```
//!
//! When libvirt starts a domain, it passes the XML of the whole domain to a hook. The XML is
//! untrusted, since it comes from any user who may define a domain. So the hook drops all
//! privileges before it parses the XML.

use roxmltree::{Document, Node, ParsingOptions};
use serde_json::{Map, Value};
use slackline_control::ReservationParameters;
use slackline_service::{Amount, Name, Terms};
use slackline_units::Span;

use crate::find::libvirt_binding;

/// XML namespace of Slackline's metadata.
pub const NAMESPACE: &str = "urn:slackline:1";

/// Maximum length of domain XML that is parsed, in bytes. A typical domain has a few thousand
/// bytes, plus some hundred bytes for each device.
pub const LONGEST: usize = 1 << 20;

/// Maximum length of domain XML that is searched for `require='yes'`, in bytes. Libvirt accepts no
/// longer XML.
pub const LONGEST_SEARCHED: usize = 16 << 20;

/// Maximum number of nodes in domain XML: elements, texts and comments.
const NODES: u32 = 1 << 16;

/// Reservation that a libvirt domain requests in its metadata.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Metadata {
    /// Name of the reservation.
    pub name: String,
    /// Parameters of the reservation.
    pub wanted: ReservationParameters,
    /// True if the domain must not start without the reservation.
    pub is_required: bool,
}

/// Error: the metadata of the domain cannot be parsed.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{says}")]
pub struct BadMetadata {
    says: String,
    /// True if the domain must not start without the reservation, according to the invalid
    /// metadata. If the XML cannot be parsed at all, its text is searched for `require='yes'`.
    pub is_required: bool,
}

impl BadMetadata {
    fn new(xml: &[u8], says: impl Into<String>) -> BadMetadata {
        BadMetadata { says: says.into(), is_required: seems_required(xml) }
    }
}

/// Parses the reservation in the XML of a domain. Returns `None` if the domain requests no
/// reservation.
///
/// # Errors
/// If the XML is not a domain, or its reservation is not valid. For an invalid reservation, the
/// error text contains the line and column.
pub fn read(xml: &[u8]) -> Result<Option<Metadata>, BadMetadata> {
    if xml.len() > LONGEST {
        let says = format!("the domain XML has {} bytes; at most {LONGEST} are read", xml.len());
        return Err(BadMetadata::new(xml, says));
    }
    let text = std::str::from_utf8(xml)
        .map_err(|error| BadMetadata::new(xml, format!("the domain XML is not text: {error}")))?;
    let options = ParsingOptions { nodes_limit: NODES, ..ParsingOptions::default() };
    let document = Document::parse_with_options(text, options).map_err(|error| {
        BadMetadata::new(xml, format!("the domain definition is not XML: {error}"))
    })?;
    let domain = document.root_element();
    if !domain.has_tag_name("domain") {
        return Err(BadMetadata::new(xml, "the root element of the XML is not `domain`"));
    }
    let metadata = domain.children().filter(|node| node.has_tag_name("metadata"));
    let mut ours = metadata
        .flat_map(|metadata| metadata.children())
        .filter(|node| node.tag_name().namespace() == Some(NAMESPACE));
    let Some(first) = ours.next() else { return Ok(None) };
    let second = ours.next();
    let mut all = [Some(first), second].into_iter().flatten().chain(ours);
    let is_required = all.any(|one| one.attribute("require") == Some("yes"));
    of_element(domain, first, second).map(Some).map_err(|says| BadMetadata { says, is_required })
}

/// Returns true if XML that cannot be parsed contains Slackline's namespace and `require='yes'`.
fn seems_required(xml: &[u8]) -> bool {
    let is_in = |text: &[u8]| xml.windows(text.len()).any(|part| part == text);
    is_in(NAMESPACE.as_bytes()) && (is_in(b"require='yes'") || is_in(b"require=\"yes\""))
}

fn of_element(
    domain: Node<'_, '_>,
    element: Node<'_, '_>,
    second: Option<Node<'_, '_>>,
) -> Result<Metadata, String> {
    let at = |node: Node<'_, '_>| node.document().text_pos_at(node.range().start);
    if let Some(second) = second {
        return Err(format!("{}: only one element may have Slackline's namespace", at(second)));
    }
    if element.tag_name().name() != "reservation" {
        return Err(format!("{}: the element is not called `reservation`", at(element)));
    }
    let called = text_of(domain, "name").ok_or("the domain has no name")?;
    let mut name = called;
    let mut wanted = Map::new();
    for attribute in element.attributes() {
        let here = element.document().text_pos_at(attribute.range().start);
        let (key, value) = (attribute.name(), attribute.value());
        let value = match key {
            "slice" | "period" | "cpu" | "phase" => Value::from(value),
            "exact" => Value::from(yes_or_no(value).map_err(|why| format!("{here}: {why}"))?),
            "vcpus" => Value::from(number(value).map_err(|why| format!("{here}: {why}"))?),
            "require" => {
                yes_or_no(value).map_err(|why| format!("{here}: {why}"))?;
                continue;
            }
            "name" => {
                name = value;
                continue;
            }
            _ => {
                return Err(format!(
                    "{here}: `{key}` is not one of the attributes slice, period, cpu, exact, \
                     phase, vcpus, name and require"
                ));
            }
        };
        wanted.insert(key.to_owned(), value);
    }
    if !wanted.contains_key("slice") && !wanted.contains_key("cpu") {
        return Err(format!("{}: write slice='2ms' or cpu='40%'", at(element)));
    }
    if let (false, Some(vcpus)) = (wanted.contains_key("vcpus"), vcpus_of(domain)) {
        wanted.insert("vcpus".into(), vcpus.into());
    }
    let binding = libvirt_binding(called).ok_or("the name of the domain cannot be a binding")?;
    wanted.insert("for".into(), binding.to_string().into());
    name.parse::<slackline_service::Name>().map_err(|why| {
        let shown = name.escape_debug();
        format!("{}: write another name='NAME': `{shown}` {why}", at(element))
    })?;
    let wanted: ReservationParameters = serde_json::from_value(Value::Object(wanted))
        .map_err(|why| format!("{}: {why}", at(element)))?;
    if let Some(slice) = slice_of(&wanted).filter(|slice| *slice > Terms::LONGEST_RUN) {
        // The hook asks as root, so the daemon would accept it.
        let (at, most) = (at(element), Terms::LONGEST_RUN);
        return Err(format!(
            "{at}: a slice of {slice} is too long: metadata may have at most {most}"
        ));
    }
    let is_required = element.attribute("require") == Some("yes");
    Ok(Metadata { name: name.to_owned(), wanted, is_required })
}

/// Returns a second name for a guest's reservation, which is used if another user has a reservation
/// with the guest's name. It is the guest's name, shortened if needed, with `.libvirt` at its end.
/// Only administrators may use such names.
#[must_use]
pub fn other_name(name: &str) -> String {
    let longest = Name::LONGEST - Name::OF_LIBVIRT.len();
    name.chars().take(longest).chain(Name::OF_LIBVIRT.chars()).collect()
}

/// Returns the slice of each vCPU. `None` if the parameters form no valid reservation. The daemon
/// refuses such parameters later.
fn slice_of(wanted: &ReservationParameters) -> Option<Span> {
    let together = |share| {
        let period = wanted.period.map(|period| period.0);
        let amount = Amount::Together { share, period };
        let terms = amount.terms(wanted.exact, wanted.vcpus.unwrap_or(1)).ok()?;
        Some(terms.each().slice())
    };
    let slice = wanted.slice.map(|slice| slice.0);
    slice.or_else(|| together(wanted.cpu?.0))
}

/// Returns the number of vCPUs that a domain has when it starts. `None` if the XML contains no
/// valid number.
fn vcpus_of(domain: Node<'_, '_>) -> Option<u16> {
    let element = domain.children().find(|node| node.has_tag_name("vcpu"))?;
    let all = || element.text().map(str::trim);
    element.attribute("current").or_else(all)?.parse().ok()
}

fn text_of<'a>(node: Node<'a, '_>, name: &str) -> Option<&'a str> {
    node.children().find(|child| child.has_tag_name(name))?.text()
}

fn yes_or_no(text: &str) -> Result<bool, &'static str> {
    match text {
        "yes" => Ok(true),
        "no" => Ok(false),
        _ => Err("write yes or no"),
    }
}

fn number(text: &str) -> Result<u16, &'static str> {
    text.parse().map_err(|_| "write a number of vCPUs")
}

#[cfg(test)]
mod tests {
    use proptest::collection::vec;
    use proptest::prelude::*;
    use slackline_control::{Length, Share};
    use slackline_units::{CpuShare, Span};

    use super::*;

    /// XML of a domain as libvirt 9.0 passes it to its hook, with few devices.
    const DOMAIN: &str = include_str!("hook/domain.xml");

    fn with(element: &str) -> String {
        DOMAIN.replace("<!--OURS-->", element)
    }

    fn ours(attributes: &str) -> Result<Option<Metadata>, BadMetadata> {
        read(with(&format!("<s:reservation xmlns:s='{NAMESPACE}' {attributes}/>")).as_bytes())
    }

    fn says(attributes: &str) -> String {
        ours(attributes).unwrap_err().to_string()
    }

    #[test]
    fn domain_metadata_of_libvirt_is_parsed_into_a_reservation() {
        let found = ours("slice='2ms' period='20ms' exact='yes' phase='3ms'").unwrap().unwrap();
        let wanted = ReservationParameters {
            slice: Some(Length(Span::from_ms(2))),
            period: Some(Length(Span::from_ms(20))),
            exact: true,
            phase: Some(Length(Span::from_ms(3))),
            vcpus: Some(2),
            binding: Some("libvirt:web.1".into()),
            ..ReservationParameters::default()
        };
        assert_eq!(found, Metadata { name: "web.1".into(), wanted, is_required: false });
        let found = ours("cpu='40%' vcpus='1' name='other' require='yes'").unwrap().unwrap();
        assert_eq!((found.name.as_str(), found.wanted.vcpus), ("other", Some(1)));
        assert_eq!(found.wanted.cpu, Some(Share(CpuShare::from_ppm(400_000))));
        assert!(found.is_required);
    }

    #[test]
    fn reservation_name_with_libvirt_suffix_is_valid_for_any_guest() {
        assert_eq!(other_name("web.1"), "web.1.libvirt");
        let longest = "w".repeat(Name::LONGEST);
        assert!(longest.parse::<Name>().is_ok() && other_name(&longest).parse::<Name>().is_ok());
    }

    #[test]
    fn domain_metadata_in_a_foreign_xml_namespace_is_ignored() {
        assert_eq!(read(DOMAIN.as_bytes()), Ok(None));
        for element in [
            "<reservation slice='2ms'/>",
            "<s:reservation xmlns:s='urn:other' slice='2ms'/>",
            "<o:o xmlns:o='urn:o'><s:reservation xmlns:s='urn:slackline:1' slice='2ms'/></o:o>",
        ] {
            assert_eq!(read(with(element).as_bytes()), Ok(None), "{element}");
        }
    }

    #[test]
    fn refusal_of_invalid_domain_metadata_includes_line_and_column() {
        assert!(says("").contains("write slice='2ms' or cpu='40%'"), "{}", says(""));
        for attributes in [
            "",
            "slice='2'",
            "slice='2ms' exact='1'",
            "slice='2ms' vcpus='-1'",
            "slice='2ms' slize='1ms'",
        ] {
            let text = says(attributes);
            let mut parts = text.splitn(3, ':');
            assert_eq!(parts.next(), Some("5"), "{text}");
            assert!(parts.next().is_some_and(|column| column.parse::<u32>().is_ok()), "{text}");
        }
        assert!(says("slice='2'").contains("`2` has no unit"));
        assert!(says("slice='2ms' exact='1'").ends_with("write yes or no"));
        assert!(says("slice='2ms' vcpus='-1'").ends_with("write a number of vCPUs"));
        assert!(
            says("slice='2ms' slize='1ms'")
                .contains("`slize` is not one of the attributes slice, period")
        );
        assert!(says("slice='2ms' name='../x'").contains("write another name='NAME'"));
        assert!(ours("slice='2' require='yes'").unwrap_err().is_required);
        let long = says("slice='1001ms' period='10s'");
        assert_eq!(long, "5:5: a slice of 1.001s is too long: metadata may have at most 1s");
        assert!(says("cpu='20%' vcpus='2' period='60s'").contains("a slice of 6s is too long"));
        assert!(ours("slice='1s' period='604800s'").is_ok());
        let two = format!("<a:reservation xmlns:a='{NAMESPACE}'/><a:x xmlns:a='{NAMESPACE}'/>");
        assert!(read(with(&two).as_bytes()).unwrap_err().to_string().contains("only one element"));
    }

    #[test]
    fn invalid_domain_xml_with_require_yes_still_requires_the_reservation() {
        let ours = format!("<s:reservation xmlns:s='{NAMESPACE}' slice='1ms' require='yes'/>");
        let xml = with(&ours).into_bytes();
        let long = [xml.clone(), vec![b' '; LONGEST]].concat();
        let no_text = [&xml[..], &[0xff]].concat();
        let cut = xml[..xml.len() - 4].to_vec();
        let first = format!("<a:reservation xmlns:a='{NAMESPACE}' slice='1ms'/>");
        for xml in [long, no_text, cut, with(&(first + &ours)).into_bytes()] {
            let refused = read(&xml).unwrap_err();
            assert!(refused.is_required, "{refused}");
        }
        assert!(!read(&[0xff]).unwrap_err().is_required);
    }

    #[test]
    fn oversized_or_malformed_domain_xml_is_refused_without_crash() {
        let refused = |xml: &[u8]| read(xml).unwrap_err().to_string();
        assert!(refused(&vec![b' '; LONGEST + 1]).contains("1048577 bytes; at most 1048576"));
        assert!(refused(&[0xff]).contains("is not text"));
        assert!(refused(b"").contains("is not XML"));
        assert!(refused(b"<pool/>").contains("is not `domain`"));
        let many = with(&"<a/>".repeat(1 << 17));
        assert!(refused(many.as_bytes()).contains("is not XML"), "{}", refused(many.as_bytes()));
        let entities = "<!DOCTYPE domain [<!ENTITY a 'b'>]><domain>&a;</domain>";
        assert!(refused(entities.as_bytes()).contains("is not XML"));
        // Deep nesting may be refused or read, but must not crash.
        let deep = with(&("<a>".repeat(100_000) + &"</a>".repeat(100_000)));
        let _ = read(deep.as_bytes());
    }

    proptest! {
        #[test]
        fn arbitrary_bytes_given_as_domain_xml_cause_no_panic(bytes in vec(any::<u8>(), 0..300)) {
            let _ = read(&bytes);
        }

        /// The domain XML is damaged: a part of the XML is removed, repeated or changed.
        #[test]
        fn domain_xml_damaged_at_any_place_is_parsed_or_refused(
            at in any::<prop::sample::Index>(),
            length in 0_usize..60,
            by in vec(any::<u8>(), 0..8),
        ) {
            let ours = "<s:reservation xmlns:s='urn:slackline:1' slice='2ms'/>";
            let mut xml = with(ours).into_bytes();
            let from = at.index(xml.len());
            let to = (from + length).min(xml.len());
            xml.splice(from..to, by);
            if let Ok(Some(found)) = read(&xml) {
                prop_assert!(found.wanted.binding.is_some());
            }
        }
    }
}

//! The options of `#[event(…)]`.

use syn::meta::ParseNestedMeta;
use syn::spanned::Spanned;
use syn::{DeriveInput, LitInt, LitStr, Member};

const KNOWN: &str = "`aggregate`, `id`, `topic`, `type` and `version`";
const EXAMPLE: &str = "#[event(aggregate = \"Order\", id = order_id)]";

/// What `postrider::event::NAME_BYTES_MAX` says, checked here already.
const NAME_BYTES_MAX: usize = 255;

pub(crate) struct Options {
    pub(crate) aggregate: String,
    pub(crate) id: Member,
    pub(crate) event_type: Option<String>,
    pub(crate) version: u32,
    pub(crate) topic: Option<String>,
}

#[derive(Default)]
struct Given {
    aggregate: Option<String>,
    id: Option<Member>,
    event_type: Option<String>,
    version: Option<u32>,
    topic: Option<String>,
}

impl Options {
    /// Reads the options of a type, or says at which of them the mistake is.
    pub(crate) fn of(input: &DeriveInput) -> syn::Result<Self> {
        let mut given = Given::default();
        let mut attribute = None;
        for attr in input.attrs.iter().filter(|attr| attr.path().is_ident("event")) {
            attr.parse_nested_meta(|option| given.read(&option))?;
            attribute.get_or_insert(attr.path().span());
        }
        let Some(span) = attribute else {
            let message = format!("`Event` needs to know its aggregate: add `{EXAMPLE}`");
            return Err(syn::Error::new(input.ident.span(), message));
        };
        let missing = |option| {
            syn::Error::new(span, format!("the option `{option}` is missing, as in `{EXAMPLE}`"))
        };
        Ok(Options {
            aggregate: given.aggregate.ok_or_else(|| missing("aggregate"))?,
            id: given.id.ok_or_else(|| missing("id"))?,
            event_type: given.event_type,
            version: given.version.unwrap_or(1),
            topic: given.topic,
        })
    }
}

impl Given {
    fn read(&mut self, option: &ParseNestedMeta<'_>) -> syn::Result<()> {
        let name = option.path.get_ident().map(ToString::to_string).unwrap_or_default();
        match name.as_str() {
            "aggregate" => set(option, &mut self.aggregate, text),
            "id" => set(option, &mut self.id, |option| option.value()?.parse()),
            "topic" => set(option, &mut self.topic, text),
            "type" => set(option, &mut self.event_type, text),
            "version" => set(option, &mut self.version, version),
            _ => Err(option.error(format!("unknown option; the options are {KNOWN}"))),
        }
    }
}

fn set<T>(
    option: &ParseNestedMeta<'_>,
    slot: &mut Option<T>,
    read: impl FnOnce(&ParseNestedMeta<'_>) -> syn::Result<T>,
) -> syn::Result<()> {
    if slot.is_some() {
        return Err(option.error("this option is given twice"));
    }
    *slot = Some(read(option)?);
    Ok(())
}

fn text(option: &ParseNestedMeta<'_>) -> syn::Result<String> {
    let literal: LitStr = option.value()?.parse()?;
    let text = literal.value();
    if text.is_empty() || text.len() > NAME_BYTES_MAX {
        let message = format!("this must have 1 to {NAME_BYTES_MAX} bytes");
        return Err(syn::Error::new(literal.span(), message));
    }
    Ok(text)
}

fn version(option: &ParseNestedMeta<'_>) -> syn::Result<u32> {
    let literal: LitInt = option.value()?.parse()?;
    match literal.base10_parse()? {
        0 => Err(syn::Error::new(literal.span(), "versions start at 1")),
        version => Ok(version),
    }
}

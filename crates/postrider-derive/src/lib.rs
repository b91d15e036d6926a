//! The `#[derive(Event)]` of postrider; use it as `postrider::Event`.

mod options;

use options::Options;
use proc_macro2::{Span, TokenStream};
use quote::{ToTokens, quote, quote_spanned};
use syn::spanned::Spanned;
use syn::{Data, DeriveInput, Field, Fields, Member, parse_macro_input, parse_quote};

/// Implements `postrider::ToEvent` for a struct whose JSON, by serde, is the event's payload.
///
/// ```ignore
/// #[derive(serde::Serialize, postrider::Event)]
/// #[event(aggregate = "Order", id = order_id)]
/// struct OrderPaid {
///     order_id: String,
///     amount: u32,
/// }
/// ```
///
/// | option | meaning |
/// |---|---|
/// | `aggregate = "Order"` | the aggregate type; required |
/// | `id = order_id` | the field with the aggregate id, by `Display`; required |
/// | `topic = "orders"` | overrides the topic that the relay would choose |
/// | `type = "OrderPaid"` | the event type; defaults to the struct's name |
/// | `version = 2` | the version of the payload's shape; defaults to 1 |
#[proc_macro_derive(Event, attributes(event))]
pub fn derive_event(input: proc_macro::TokenStream) -> proc_macro::TokenStream {
    let input = parse_macro_input!(input as DeriveInput);
    expand(input).unwrap_or_else(syn::Error::into_compile_error).into()
}

fn expand(mut input: DeriveInput) -> syn::Result<TokenStream> {
    let fields = match &input.data {
        Data::Struct(data) => &data.fields,
        Data::Enum(data) => return Err(only_structs(data.enum_token)),
        Data::Union(data) => return Err(only_structs(data.union_token)),
    };
    let options = Options::of(&input)?;
    let id_type = field(fields, &options.id)?.ty.clone();

    // Only a generic struct needs the bounds; for any other the compiler checks the body.
    if input.generics.type_params().next().is_some() {
        let bounds = input.generics.make_where_clause();
        bounds.predicates.push(parse_quote!(Self: ::postrider::__private::Serialize));
        bounds.predicates.push(parse_quote!(#id_type: ::std::string::ToString));
    }
    let (impl_generics, type_generics, where_clause) = input.generics.split_for_impl();
    let name = &input.ident;
    let aggregate = &options.aggregate;
    let event_type = options.event_type.unwrap_or_else(|| name.to_string());
    let version = options.version;
    let topic = options.topic.map(|topic| quote!(.topic(#topic)));
    let id_member = &options.id;
    // At the field's type, where an id that cannot be displayed is then reported.
    let id_span = id_type.span().resolved_at(Span::call_site());
    let id = quote_spanned!(id_span=> ::std::string::ToString::to_string(id));

    Ok(quote! {
        #[automatically_derived]
        impl #impl_generics ::postrider::ToEvent for #name #type_generics #where_clause {
            fn to_event(
                &self,
            ) -> ::std::result::Result<::postrider::event::Event, ::postrider::InvalidEvent> {
                let id = &self.#id_member;
                ::postrider::event::Event::builder(#aggregate, #id, #event_type)
                    .version(#version)
                    #topic
                    .json(self)
                    .build()
            }
        }

        #[automatically_derived]
        impl #impl_generics ::postrider::EventType for #name #type_generics #where_clause {
            const EVENT_TYPE: &'static str = #event_type;
            const EVENT_VERSION: u32 = #version;
        }
    })
}

fn only_structs(keyword: impl ToTokens) -> syn::Error {
    syn::Error::new_spanned(
        keyword,
        "`Event` can only be derived for a struct; give each kind of event a struct of its own",
    )
}

fn field<'f>(fields: &'f Fields, wanted: &Member) -> syn::Result<&'f Field> {
    let members: Vec<Member> = fields.members().collect();
    if let Some(position) = members.iter().position(|member| member == wanted) {
        return Ok(fields.iter().nth(position).expect("a struct has one member per field"));
    }
    let known: Vec<String> =
        members.iter().map(|member| format!("`{}`", member.to_token_stream())).collect();
    let known = if known.is_empty() { "none".to_owned() } else { known.join(", ") };
    let message =
        format!("there is no field `{}`; the fields are: {known}", wanted.to_token_stream());
    Err(syn::Error::new(wanted.span(), message))
}

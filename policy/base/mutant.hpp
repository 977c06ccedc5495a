// Bugs that others have had, planted one at a time in a build of its own (tests/mutants), to see the swarm find them.
// Everywhere else KV_MUTANT(n) is false, and what hangs on it gone.
//
//    1 a page is handed to a transfer before it is computed     7 stored pages don't say whose they are (namespace)
//    2 a page that a pass reads is evicted                      8 a storage tier loses the first pages of a chain
//    3 a source is reused while its copy is pending             9 a hit is shortened without a word
//    4 a host copy goes while it is being loaded               10 a plan leaves out a part of its pages
//    5 a target is freed while a get fills it                  11 a page's key leaves out what lies before it
//    6 a prefetch publishes pages that haven't arrived         12 stored pages don't say what they are (dtype)
#pragma once

#if defined(KVTWIN_MUTANTS)
namespace kvtwin {
extern int planted_mutant;
}
#define KV_MUTANT(n) (::kvtwin::planted_mutant == (n))
#else
#define KV_MUTANT(n) false
#endif

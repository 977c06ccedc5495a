// Real bugs of other systems, planted one at a time in a build of their own (tests/mutants), to check that the swarm
// tests find them. In all other builds KV_MUTANT(n) is false, and the compiler removes the bug's code.
//
//    1 a page is given to a transfer before it is computed      7 a stored page's name lacks the namespace
//    2 a page that a pass reads is evicted                      8 a storage tier loses the first pages of a chain
//    3 a source is reused while its copy is pending             9 a hit is shortened without a report
//    4 a host copy is dropped while it is being loaded         10 a plan leaves out a part of its pages
//    5 a target is freed while a get fills it                  11 a page's key leaves out the pages before
//    6 a prefetch publishes pages that have not arrived        12 a stored page's name lacks the dtype
//   13 a hold that follows its session keeps the old path     14 an evicted node's references stay above it twice
#pragma once

#if defined(KVTWIN_MUTANTS)
namespace kvtwin {
extern int planted_mutant;
}
#define KV_MUTANT(n) (::kvtwin::planted_mutant == (n))
#else
#define KV_MUTANT(n) false
#endif

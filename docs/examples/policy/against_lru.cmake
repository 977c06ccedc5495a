# Compares the policy with LRU: 40 groups of prompts with a shared system prompt each, in a cache that is too small for
# all of them. LRU evicts system prompts for questions that nobody asks again.
function(kvtwin)
  execute_process(COMMAND ${KVTWIN} ${ARGV} OUTPUT_VARIABLE text ERROR_VARIABLE wrong RESULT_VARIABLE status)
  if(NOT status EQUAL 0)
    message(FATAL_ERROR "kvtwin ${ARGV}: ${wrong}")
  endif()
  set(text "${text}" PARENT_SCOPE)
endfunction()

kvtwin(trace generate --kind groups --groups 40 --prompts-per-group 20 --prefix-tokens 4096 --question-tokens 2048
  --seed 7 --out ${FOLDER}/groups.jsonl --force)
kvtwin(hitrate --trace ${FOLDER}/groups.jsonl --trace-block-tokens 16 --capacity 8000
  --eviction "lru,${POLICY}" --json)
string(REGEX MATCHALL "\"token_hit_ratio\": ?[0-9.]+" ratios "${text}")
list(TRANSFORM ratios REPLACE ".*: ?" "")
list(GET ratios 0 lru)
list(GET ratios 1 policy)
message(STATUS "hit tokens: lru ${lru}, the policy ${policy}")
if(NOT policy GREATER lru)
  message(FATAL_ERROR "the policy hits ${policy} of the tokens, and lru ${lru}")
endif()

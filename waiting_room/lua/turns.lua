-- Returns those of the customers who have their turn; it moves nothing.
--
-- KEYS  1 state   hash (see waiting_room/store.py)
--       2 places  hash    customer -> numbers in the order of arrival; the last one holds
--       3 order   string  of a drawn lottery: the position of each number, 8 hex digits each
-- ARGV  customers

local state, places, order = unpack(KEYS)
local mode, serving, lapsed, cutoff, drawn = unpack(redis.call('HMGET', state, 'mode', 'serving',
  'lapsed', 'cutoff', 'drawn'))
serving, lapsed, cutoff = tonumber(serving or 0), tonumber(lapsed or 0), tonumber(cutoff or 0)
local found = {}
for i, numbers in ipairs(redis.call('HMGET', places, unpack(ARGV))) do
  local position = numbers and tonumber(numbers:match('%d+$'))
  if position and mode == 'lottery' and position <= cutoff then
    local at = 8 * position - 8
    position = drawn and tonumber(redis.call('GETRANGE', order, at, at + 7), 16)
  end
  if position and position > lapsed and position <= serving then
    found[#found + 1] = ARGV[i]
  end
end
return found

-- Removes decided reservations from the stream. A second run changes nothing.
--
-- KEYS  1 state, 2 taken, 3 outcomes, 4 orders
-- ARGV  1 group, then for each: id of the entry, number, customer, quantity, outcome
-- Returns the number of entries that were still in the stream
--
-- After 'sold_out' no units are released: the database had fewer than `left` promised.

if redis.call('EXISTS', KEYS[1]) == 0 then
  return 0
end
local settled = 0
for i = 2, #ARGV, 5 do
  local id, number, customer, quantity, outcome = unpack(ARGV, i, i + 4)
  redis.call('XACK', KEYS[4], ARGV[1], id)
  if redis.call('XDEL', KEYS[4], id) == 1 then
    settled = settled + 1
    if outcome ~= 'won' then
      if customer ~= '' then
        redis.call('HINCRBY', KEYS[2], customer, -quantity)
      end
      if outcome ~= 'sold_out' then
        redis.call('HINCRBY', KEYS[1], 'left', quantity)
      end
    end
  end
  redis.call('HSET', KEYS[3], number, quantity .. ' ' .. outcome)
end
return settled

-- Takes decided reservations out of the stream. Running it again changes nothing.
--
-- KEYS  1 state, 2 taken, 3 tickets, 4 orders
-- ARGV  1 group, then for each: entry's id, number, customer, quantity, what became of it
-- Returns how many were still in the stream
--
-- 'sold_out' says that the database had fewer pieces than `left` promised: none goes back.

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
